"""One YAML table -> one frozen pydantic model, strictly: an unknown key or wrong type ends the run early."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from pipeline.config_errors import explain
from pipeline.errors import ConfigError
from pipeline.settings import Section, kinds_of, mark_of, section_of

M = TypeVar("M", bound=Section)


def load_config(model: type[M], path: Path, overrides: Sequence[str] = ()) -> M:
    """Returns the settings of a YAML file, with `a.b=value` overrides (the value is YAML) put on top.

    Raises ConfigError for an unreadable file, a duplicate or unknown key (naming the nearest known one), a
    wrong type or a value out of range. All problems are named at once.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot read this configuration ({error}). Next: give the path of a YAML file"
        ) from None
    data = _parse(text, str(path))
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: got a {type(data).__name__}; a configuration is a table of sections")
    return config_of(model, data, overrides, str(path))


def config_of(model: type[M], data: dict[str, Any], overrides: Sequence[str], source: str) -> M:
    """Returns the settings of plain data, which `source` names in errors, with overrides put into them.

    Raises ConfigError as `load_config` does.
    """
    for override in overrides:
        key, _, value = override.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[\w-]+)*", key) or "=" not in override:
            raise ConfigError(f"override {override!r} is not of the form section.setting=value")
        _set(data, key, _parse(value, f"override {override}"))
    model = model.specialised(data)
    _name_kinds(model, data)
    try:
        # JSON in strict mode: "4" is no integer and true is no number, yet a list may fill a tuple.
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        origins = {override.partition("=")[0]: f"override {override}" for override in overrides}
        problems = error.errors(include_url=False)
        lines = [explain(model, problem, source, origins, data) for problem in problems]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from None


def split_settings(section: BaseModel) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns (semantic, runtime) settings as nested plain JSON data; empty sub-tables are left out.

    Example:
        >>> from pipeline.settings import Section, runtime
        >>> class Inner(Section):
        ...     lr: float = 0.1
        ...     threads: int = runtime(2, description="CPU threads")
        >>> split_settings(Inner())
        ({'lr': 0.1}, {'threads': 2})
    """
    semantic, other = dict[str, Any](), dict[str, Any]()
    plain = section.model_dump(mode="json")
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        if mark_of(info, "runtime"):
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
        is_name = isinstance(key, str | int | float)
        if not is_name or key in result:
            problem = "is given twice" if is_name else "is not a name"
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} {problem}", key_node.start_mark)
        result[key] = loader.construct_object(value_node, deep=True)
    return result


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _parse(text: str, source: str) -> Any:
    """Returns what a YAML text says as plain JSON data: keys are text, and no table is shared by an alias."""
    try:
        return json.loads(json.dumps(yaml.load(text, Loader=_Loader), default=str))  # a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None


def _set(data: dict[str, Any], key: str, value: Any) -> None:
    """Puts a value under a dotted key of plain data, with the sections around it where there are none."""
    *parents, last = key.split(".")
    for name in parents:
        if data.get(name) is None:
            data[name] = {}
        data = data[name]
        if not isinstance(data, dict):
            raise ConfigError(f"override {key}: {'.'.join(parents)} is a single value, not a section")
    data[last] = value


def _name_kinds(model: type[BaseModel], data: dict[str, Any]) -> None:
    """Puts the default kind into each section that has kinds and does not name its own."""
    for name, info in model.model_fields.items():
        inner = data.get(name)
        if isinstance(inner, dict):
            if kinds := kinds_of(info):
                inner.setdefault(kinds.setting, kinds.default)
            if section := section_of(info, inner):
                _name_kinds(section, inner)
