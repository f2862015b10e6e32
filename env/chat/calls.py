"""From a tool's name and arguments to an action: the one check of every way to call (text or adapter).

Of JSON Schema it reads what tool arguments use: closed objects and lists of plain values. What is not read
here is refused when a style is made, never silently accepted from a model.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from env.protocol import Action, ToolCall

Schema = Mapping[str, Any]

_OF_OBJECTS = {"properties", "required", "additionalProperties", "propertyNames"}
_READS = {"type", "description", "enum", "items", "minItems", "maxItems", "uniqueItems"} | _OF_OBJECTS
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
_NAME_CHARACTERS = 40


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Schema]:
    """Returns the arguments' schema of each OpenAI tool; ValueError if it holds what would not be checked."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    for name, schema in schemas.items():
        _check(schema, name)
    return schemas


def checked(schemas: Mapping[str, Schema], text: str, calls: Sequence[tuple[str, Any]]) -> Action:
    """Returns the action of a message with these calls (name, arguments): `ok`, or what does not fit."""
    for name, arguments in calls:
        if name not in schemas:
            return Action(text, "unknown_tool", problem="unknown tool")
        if problem := next(_problems_of(arguments, schemas[name]), ""):
            return Action(text, "bad_args", problem=f"{name}: {problem}")
    return Action(text, "ok", tuple(ToolCall(name, arguments) for name, arguments in calls))


def _check(schema: Schema, where: str) -> None:
    """Raises ValueError naming what of a schema `_problems_of` would not check.

    Every value has a type; objects say `additionalProperties`, lists say `items`.
    """
    if unread := sorted(set(schema) - _READS):
        raise ValueError(f"{where}: {', '.join(unread)} is not read; allowed: {', '.join(sorted(_READS))}")
    types = _types_of(schema)
    if not types or set(types) - set(_TYPES):
        raise ValueError(f"{where}: type is {types or 'not given'}; allowed: {', '.join(_TYPES)}")
    inner = {f"{where}.{name}": part for name, part in schema.get("properties", {}).items()}
    if "object" in types and schema.get("additionalProperties", True) is not False:
        inner[f"{where}.*"] = schema.get("additionalProperties", True)
    if "array" in types:
        inner[f"{where}[]"] = schema.get("items", True)
    for place, part in inner.items():
        if not isinstance(part, Mapping):
            raise ValueError(f"{place}: a schema is needed, got {part}; anything at all is not allowed")
        _check(part, place)
    if unread := sorted(set(schema.get("propertyNames", {})) - {"enum"}):
        raise ValueError(f"{where}: propertyNames.{', '.join(unread)} is not read; allowed: enum")


def _problems_of(value: Any, schema: Schema, where: str = "arguments") -> Iterator[str]:
    """Yields what of a JSON value does not fit a checked schema, in a few words each.

    Text that is no Unicode (half of a surrogate pair) fits nothing: it could be neither encoded nor stored.
    """
    types = _types_of(schema)
    if not any(_is_a(value, name) for name in types):
        yield f"{where} must be {' or '.join(types)}"
    elif isinstance(value, str) and not _is_unicode(value):
        yield f"{where} is not Unicode"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{where} is not one of the allowed values"
    elif isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            yield f"{where} has {len(value)} entries"
        for place, item in enumerate(value):
            yield from _problems_of(item, schema["items"], f"{where}[{place}]")
        if schema.get("uniqueItems") and len({repr(item) for item in value}) < len(value):
            yield f"{where} has an entry twice"
    elif isinstance(value, dict):
        yield from _problems_of_object(value, schema, where)


def _types_of(schema: Schema) -> tuple[str, ...]:
    given = schema.get("type", ())
    return (given,) if isinstance(given, str) else tuple(given)


def _is_a(value: Any, name: str) -> bool:
    if isinstance(value, bool):  # which Python counts among the integers
        return name == "boolean"
    is_number = not isinstance(value, float) or math.isfinite(value)  # JSON has no others
    return is_number and isinstance(value, _TYPES[name])


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _problems_of_object(value: dict[str, Any], schema: Schema, where: str) -> Iterator[str]:
    yield from (f"{where}.{name} is missing" for name in schema.get("required", ()) if name not in value)
    allowed = schema.get("propertyNames", {}).get("enum")
    for name, item in value.items():
        if not isinstance(name, str) or not _is_unicode(name):
            yield f"{where} has a name that is no Unicode text"
            continue
        place = f"{where}.{name[:_NAME_CHARACTERS]}"
        known = schema.get("properties", {}).get(name, schema["additionalProperties"])
        if known is False or (allowed is not None and name not in allowed):
            yield f"{place} is not known"
        else:
            yield from _problems_of(item, known, place)
