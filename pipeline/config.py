"""One YAML table -> one frozen pydantic model, strictly: an unknown key or a wrong type ends the run early.

Every setting is semantic (it decides what is made, and enters the stage key) or runtime (it decides only
how, is recorded, and may change between two starts of one stage). `runtime(...)` marks the second kind.
"""

from __future__ import annotations

import difflib
import json
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.errors import ConfigError

M = TypeVar("M", bound=BaseModel)


class Section(BaseModel):
    """A part of the configuration: frozen, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def runtime(default: Any, *, description: str, **constraints: Any) -> Any:
    """Returns a pydantic field for a runtime setting: recorded, but no part of what a stage makes.

    Args:
        default: value when the YAML does not say.
        description: what it does, with its unit.
        constraints: pydantic's own, such as `ge=1`.
    """
    return Field(default, description=description, json_schema_extra={"runtime": True}, **constraints)


def load_config(model: type[M], path: Path, overrides: Sequence[str] = ()) -> M:
    """Returns the settings of a YAML file, with `a.b=value` overrides (the value is YAML) put on top.

    Raises:
        ConfigError: unreadable file, duplicate or unknown key (naming the nearest known one), wrong type,
            value out of range. All problems are named at once.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot read this configuration ({error}). Next: give the path of a YAML file"
        ) from None
    data = _parse(text, str(path))
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: got a {type(data).__name__}; a configuration is a table of sections")
    origins: dict[str, str] = {}
    for override in overrides:
        key, _, value = override.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[\w-]+)*", key) or "=" not in override:
            raise ConfigError(f"override {override!r} is not of the form section.setting=value")
        _set(model, data, key, _parse(value, f"override {override}"))
        origins[key] = f"override {override}"
    return validate(model, data, str(path), origins)


def validate(
    model: type[M], data: Mapping[str, Any], source: str, origins: Mapping[str, str] | None = None
) -> M:
    """Returns `model` filled from plain data; `source` (or the origin of a dotted key) opens each message.

    Raises:
        ConfigError: see `load_config`.
    """
    try:
        # JSON in strict mode: "4" is no integer and true is no number, yet a list may fill a tuple.
        return model.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        lines = [
            _explain(model, problem, source, origins or {}) for problem in error.errors(include_url=False)
        ]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from None


def split_settings(section: BaseModel) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns (semantic, runtime) settings as nested plain JSON data; empty sub-tables are left out.

    Example:
        >>> class Inner(Section):
        ...     lr: float = 0.1
        ...     threads: int = runtime(2, description="CPU threads")
        >>> split_settings(Inner())
        ({'lr': 0.1}, {'threads': 2})
    """
    semantic: dict[str, Any] = {}
    other: dict[str, Any] = {}
    plain = section.model_dump(mode="json")
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        extra = info.json_schema_extra
        if isinstance(extra, dict) and extra.get("runtime"):
            other[name] = plain[name]
        elif isinstance(value, BaseModel):
            inner_semantic, inner_runtime = split_settings(value)
            semantic[name] = inner_semantic
            if inner_runtime:
                other[name] = inner_runtime
        else:
            semantic[name] = plain[name]
    return semantic, other


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested settings as {dotted key: value}.

    Example:
        >>> flatten({"a": {"b": 1, "c": [2]}, "d": {}})
        {'a.b': 1, 'a.c': [2], 'd': {}}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns one line per setting that differs: `key: old -> new`, keys in order.

    Example:
        >>> differences({"a": {"x": 1}}, {"a": {"x": 2, "y": None}})
        ['a.x: 1 -> 2', 'a.y: (absent) -> null']
    """
    old, new = flatten(before), flatten(now)

    def show(table: dict[str, Any], key: str) -> str:
        return json.dumps(table[key], ensure_ascii=False) if key in table else "(absent)"

    # Compared as JSON text: 1 and True are equal in Python, and are different settings.
    return [
        f"{key}: {show(old, key)} -> {show(new, key)}"
        for key in sorted({*old, *new})
        if show(old, key) != show(new, key)
    ]


class _Loader(yaml.SafeLoader):
    """YAML without duplicate keys, reading 1e-4 as the number it is (YAML 1.1 makes it text)."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    result: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, bool):
            key = key_node.value  # YAML 1.1 reads the names `on` and `yes` as true
        if not isinstance(key, str | int | float):
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} is not a name", key_node.start_mark
            )
        if key in result:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} is given twice", key_node.start_mark
            )
        result[key] = loader.construct_object(value_node, deep=True)
    return result


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _parse(text: str, source: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None


def _set(model: type[BaseModel], data: dict[str, Any], key: str, value: Any) -> None:
    """Puts an override into plain data. A single entry of a table setting keeps the table's other entries."""
    *parents, last = key.split(".")
    here: Any = data
    section: type[BaseModel] | None = model
    for name in parents:
        if not isinstance(here, dict):
            break
        info = section.model_fields.get(name) if section else None
        section = _section_of(info.annotation) if info else None
        if here.get(name) is None:
            default = info.get_default(call_default_factory=True) if info and section is None else None
            here[name] = dict(default) if isinstance(default, dict) else {}
        elif isinstance(here[name], dict):
            here[name] = dict(here[name])  # sections may share one table through a YAML alias
        here = here[name]
    if not isinstance(here, dict):
        raise ConfigError(f"override {key}: {'.'.join(parents)} is a single value, not a section")
    # A table may have been keyed by numbers; an override's key is text.
    here[next((existing for existing in here if str(existing) == last), last)] = value


def _section_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType):
        return next((found for arg in get_args(annotation) if (found := _section_of(arg))), None)
    return None


def known_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yields the dotted name of every section and setting."""
    for name, info in model.model_fields.items():
        yield prefix + name
        section = _section_of(info.annotation)
        if section:
            yield from known_keys(section, f"{prefix}{name}.")


def _explain(model: type[BaseModel], problem: Any, source: str, origins: Mapping[str, str]) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    where = _where(key, source, origins)
    if problem["type"] == "extra_forbidden":
        return f"{where}: {key} is not a setting; {_suggestion(model, key)}"
    if problem["type"] == "missing":
        return f"{where}: {key} is required and not given"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ").removeprefix("String ")
    if not key:
        return f"{where}: {message}"
    got = json.dumps(problem.get("input"), ensure_ascii=False, default=str)
    got = got if len(got) <= 120 else got[:117] + "..."
    info = _field(model, problem["loc"])
    meaning = f" ({info})" if info else ""
    # pydantic's own messages say what the value should be; those of our validators are sentences.
    joint = ", but it " if message.startswith("should ") else ": "
    return f"{where}: {key} = {got}{joint}{message}{meaning}"


def _where(key: str, source: str, origins: Mapping[str, str]) -> str:
    """Returns the override that set a key, or else the source with the overrides of settings within it."""
    for name, text in origins.items():
        if key == name or key.startswith(name + "."):
            return text
    within = [text for name, text in origins.items() if not key or name.startswith(key + ".")]
    return f"{source} with {', '.join(within)}" if within else source


def _field(model: type[BaseModel], loc: Sequence[Any]) -> str | None:
    section: type[BaseModel] | None = model
    description = None
    for part in loc:
        info = section.model_fields.get(str(part)) if section else None
        if info is None:
            break
        description = info.description
        section = _section_of(info.annotation)
    return description


def _suggestion(model: type[BaseModel], key: str) -> str:
    known = list(known_keys(model))
    leaf = key.rpartition(".")[2]
    head = key.partition(".")[0]
    level = [name for name in known if name.count(".") == key.count(".")]
    nearest = difflib.get_close_matches(key, level, n=1, cutoff=0.8)
    if not nearest:  # the right name at another level, preferably of the same section
        same = difflib.get_close_matches(leaf, {name.rpartition(".")[2] for name in known}, n=1, cutoff=0.8)
        places = [name for name in known if same and name.rpartition(".")[2] == same[0]]
        nearest = [name for name in places if name.partition(".")[0] == head][:1] or places[:1]
    parent = key.rpartition(".")[0]
    allowed = [name for name in known if name.rpartition(".")[0] == parent]
    allowed = allowed or [name for name in known if "." not in name]
    nearest = nearest or difflib.get_close_matches(leaf, [name.rpartition(".")[2] for name in allowed], n=1)
    if nearest:
        place = next((name for name in allowed if name.rpartition(".")[2] == nearest[0]), nearest[0])
        return f"did you mean {place}?"
    return f"allowed: {', '.join(allowed)}"
