"""Which settings a component reads, found without importing it.

A server class says which config class it takes (`config: MyConfig`). The fields of that class are read from the source
text, through base classes in the same file or in the file of another component, up to a base class of this package
whose fields are listed here. When any step is not that plain, or a class keeps what it does not declare, the answer is
None: the fields are not known, and nothing is said about unknown keys.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from nemo_gym.config.names import BLOCK_KEYS
from nemo_gym.config.roots import COMPONENT_KINDS, INSTALL_ROOT

_LONGEST_CHAIN = 12

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
    source = _Source.read(app_file)
    if source is None:
        return None
    annotated = {
        name
        for node in source.classes.values()
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and statement.target.id == "config"
        for name in [_name(statement.annotation)]
        if name
    }
    if len(annotated) != 1:
        return None
    return _fields_of(annotated.pop(), source, _LONGEST_CHAIN)


@dataclass(frozen=True, slots=True)
class _Source:
    """The classes of one file, and from which module it has each imported name."""

    file: Path
    classes: Mapping[str, ast.ClassDef]
    imported_from: Mapping[str, str]

    @classmethod
    def read(cls, file: Path) -> _Source | None:
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError, RecursionError):
            return None
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        imported = {
            alias.name: node.module
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module and not node.level
            for alias in node.names
            if alias.asname is None
        }
        return cls(file, classes, imported)

    def of_component(self, name: str) -> _Source | None:
        """The file of another component that `name` is imported from; None when it is not one."""
        module = self.imported_from.get(name, "")
        shipped = module.removeprefix("nemo_gym.builtin.")
        # A component is <root>/<kind>/<name>/app.py, and <root> is where its neighbours are imported from.
        root = INSTALL_ROOT if shipped != module else self.file.parents[2]
        parts = shipped.split(".")
        return self.read(root.joinpath(*parts).with_suffix(".py")) if parts[0] in COMPONENT_KINDS else None


def _fields_of(name: str, source: _Source, steps: int) -> frozenset[str] | None:
    if steps == 0:
        return None
    if name not in source.classes:
        if name in _BASES_OF_THIS_PACKAGE:
            return _BASE_FIELDS
        other = source.of_component(name)
        return _fields_of(name, other, steps - 1) if other is not None else None
    node = source.classes[name]
    if _takes_anything(node):
        return None
    fields = {
        text
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        for text in [statement.target.id, *_aliases(statement)]
    }
    for base in node.bases:
        inherited = _fields_of(_name(base) or "", source, steps - 1)
        if inherited is None:
            return None
        fields |= inherited
    return frozenset(fields)


def _takes_anything(node: ast.ClassDef) -> bool:
    """Whether the class says that it keeps what it does not declare."""
    return any(
        isinstance(inner, ast.Constant) and inner.value == "allow"
        for statement in node.body
        if isinstance(statement, ast.Assign | ast.AnnAssign) and "model_config" in ast.unparse(statement).split("=")[0]
        for inner in ast.walk(statement)
    ) or any(keyword.arg == "extra" for keyword in node.keywords)


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
