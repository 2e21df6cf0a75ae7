"""Union fields whose class is chosen by looking at the value, one value at a time.

The wire has some thirty item kinds. A plain union would build and try every one of them; a marker in `Annotated`
looks at the kind first, so that only the classes that are used are ever built, and an error names the one kind that
was meant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

ItemClass = type[BaseModel]


class Chosen:
    """`Annotated` marker: validate a value with the class that `choose` names for its JSON object.

    `choose` gets a fresh dict, may normalise it, and returns the class; it raises `PydanticCustomError` when none fits.
    An instance of one of `keep()` is taken as it is; any other pydantic object is dumped without its unset fields and
    read again.
    """

    def __init__(
        self, choose: Callable[[dict[str, Any]], ItemClass], *, keep: Callable[[], tuple[ItemClass, ...]]
    ) -> None:
        self._choose, self._keep = choose, keep

    def validate(self, value: Any) -> BaseModel:
        """Return the typed item; raises what pydantic turns into a validation error at the item's position."""
        if isinstance(value, BaseModel):
            if isinstance(value, self._keep()):
                return value
            value = value.model_dump(exclude_unset=True)
        if not isinstance(value, Mapping):
            raise PydanticCustomError(
                "item_type", "a JSON object is needed, this is a {kind}", {"kind": type(value).__name__}
            )
        payload = dict(value)
        return self._choose(payload).model_validate(payload)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return a schema that does not descend into the union, which stays for type checkers and readers."""
        return core_schema.no_info_plain_validator_function(self.validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Describe the value as an open object."""
        return {"type": "object"}


def classes_by_type(union: Any) -> dict[str, ItemClass]:
    """Return {`type` value: class} of a union of pydantic classes; the first class of a kind wins."""
    found: dict[str, ItemClass] = {}
    for cls in _members(union):
        field = cls.model_fields.get("type")
        for name in _literals(field.annotation if field else None):
            found.setdefault(name, cls)
    return found


def kind_of(value: Mapping[str, Any]) -> str:
    """Return the object's `type`, or "" when it has none that is a string."""
    kind = value.get("type")
    return kind if isinstance(kind, str) else ""


def unknown_kind(what: str, value: Mapping[str, Any]) -> PydanticCustomError:
    """Return the error for an object that is none of the known kinds, naming it by what it has, not by its content."""
    named = [f"{key} `{value[key]}`" for key in ("type", "role") if isinstance(value.get(key), str)]
    keys = ", ".join(sorted(str(key) for key in value)[:12]) or "none"
    name = " and ".join(named) or "without a type"
    return PydanticCustomError(
        "unknown_kind", "unknown {what}: {name} (keys: {keys})", {"what": what, "name": name, "keys": keys}
    )


def _members(union: Any) -> list[ItemClass]:
    if get_origin(union) is Annotated:
        return _members(get_args(union)[0])
    if isinstance(union, type) and issubclass(union, BaseModel):
        return [union]
    return [cls for part in get_args(union) for cls in _members(part)]


def _literals(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [value for value in get_args(annotation) if isinstance(value, str)]
    return [value for part in get_args(annotation) for value in _literals(part)]
