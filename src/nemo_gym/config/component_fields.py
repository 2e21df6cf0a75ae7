"""Which settings a shipped component reads, found without importing it.

A server class says which config class it takes (`config: MyConfig`). The fields of that class are read from the source
text, through base classes in the same file up to a base class of this package whose fields are listed here. When any
step is not that plain, the answer is None: the fields are not known, and nothing is said about unknown keys.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

from nemo_gym.config.names import BLOCK_KEYS

_BASES_OF_THIS_PACKAGE = frozenset(
    {
        "BaseResourcesServerConfig",
        "BaseResponsesAPIAgentConfig",
        "BaseResponsesAPIModelConfig",
        "BaseEnvironmentServerConfig",
        "BaseRunServerInstanceConfig",
        "BaseModel",
    }
)
_BASE_FIELDS = BLOCK_KEYS | {
    "max_concurrent_episodes",
    "queue_timeout_seconds",
    "default_episode_timeout_seconds",
    "cleanup_timeout_seconds",
}


@lru_cache(maxsize=64)
def config_fields(app_file: Path) -> frozenset[str] | None:
    """Return the names of the settings that the server in `app_file` reads, or None when they cannot be told."""
    try:
        tree = ast.parse(app_file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    annotated = {
        name
        for node in classes.values()
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and statement.target.id == "config"
        for name in [_name(statement.annotation)]
        if name
    }
    if len(annotated) != 1:
        return None
    return _fields_of(annotated.pop(), classes)


def _fields_of(name: str, classes: dict[str, ast.ClassDef]) -> frozenset[str] | None:
    if name not in classes:
        return _BASE_FIELDS if name in _BASES_OF_THIS_PACKAGE else None
    node = classes[name]
    fields = {
        text
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        for text in [statement.target.id, *_aliases(statement)]
    }
    for base in node.bases:
        inherited = _fields_of(_name(base) or "", classes)
        if inherited is None:
            return None
        fields |= inherited
    return frozenset(fields)


def _name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _aliases(statement: ast.AnnAssign) -> list[str]:
    """Names of `Field(alias="...")` and `Field(validation_alias=...)`, whatever they are wrapped in."""
    if not isinstance(statement.value, ast.Call):
        return []
    return [
        node.value
        for keyword in statement.value.keywords
        if keyword.arg in ("alias", "validation_alias")
        for node in ast.walk(keyword.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
