"""The base of command configurations."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, model_validator


class BaseNeMoGymCLIConfig(BaseModel):
    """A command's configuration; `help` or `h` among its values, or `-h` on the command line, shows its fields.

    The process exits with 0 then.
    """

    @model_validator(mode="before")
    @classmethod
    def _show_help(cls, data: Any) -> Any:
        asked = isinstance(data, Mapping) and any(data.get(name) for name in ("help", "h"))
        if asked or not {"-h", "--help"}.isdisjoint(sys.argv[1:]):
            sys.stdout.write(cls.describe_fields())
            raise SystemExit(0)
        return data

    @classmethod
    def describe_fields(cls) -> str:
        """Return one line per field: name, type, default and description."""
        lines = [(cls.__doc__ or cls.__name__).strip().splitlines()[0], ""]
        for name, field in cls.model_fields.items():
            kind = getattr(field.annotation, "__name__", str(field.annotation))
            default = "required" if field.is_required() else f"default {field.get_default(call_default_factory=True)!r}"
            lines.append(f"  {name}: {kind} ({default}) {field.description or ''}".rstrip())
        return "\n".join(lines) + "\n"
