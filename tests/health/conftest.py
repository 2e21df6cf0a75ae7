from __future__ import annotations

import sys
from pathlib import Path

# The helper module of these tests; test modules themselves are imported by path.
sys.path.insert(0, str(Path(__file__).parent))
