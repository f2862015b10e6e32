"""What is said of a configuration that cannot be used: where, got, allowed, the nearest right setting."""

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from pipeline.settings import Kinds, kinds_of, known_keys, section_of


class _Union(NamedTuple):
    """The innermost union of sections around a place: its dotted name, and the kind that is given."""

    name: str
    kinds: Kinds
    members: Mapping[str, type[BaseModel]]
    kind: str


class _Place(NamedTuple):
    """Where in a configuration a problem lies."""

    key: str
    description: str | None
    union: _Union | None


def explain(
    model: type[BaseModel], problem: Any, source: str, origins: Mapping[str, str], data: Mapping[str, Any]
) -> str:
    """Returns an entry of `ValidationError.errors()` as a sentence for who wrote the configuration.

    `origins` has the override that set a dotted key; `data` is the whole configuration as it was given.
    """
    place = _place_of(model, problem["loc"], data)
    key = place.key
    where = _where(key, source, origins)
    given = problem.get("input")
    if problem["type"] == "extra_forbidden":
        return f"{where}: {key} is not a setting{_instead(model, place, given)}"
    if problem["type"] == "missing":
        return f"{where}: {key} is required and not given"
    got = json.dumps(given, ensure_ascii=False, default=str)
    got = got if len(got) <= 120 else got[:117] + "..."
    if problem["type"].startswith("union_tag") and place.union:
        name, members = place.union.kinds.name, place.union.members
        setting = f"{key}.{name}"
        if isinstance(given, dict):
            return f"{where}: {setting} = {json.dumps(given[name])}; allowed: {', '.join(members)}"
        meant = f"{setting} = {given}" if given in members else setting
        return f"{where}: {key} = {got}, but it is a section; did you mean {meant}?"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ").removeprefix("String ")
    if not key:
        return f"{where}: {message}"
    meaning = f" ({place.description})" if place.description else ""
    # pydantic's own messages say what the value should be; those of our validators are sentences.
    joint = ", but it " if message.startswith("should ") else ": "
    return f"{where}: {key} = {got}{joint}{message}{meaning}"


def _place_of(model: type[BaseModel], loc: Sequence[Any], data: Any) -> _Place:
    """Returns the place of pydantic's location, in which each union adds the kind that it took."""
    parts: list[str] = []
    section: type[BaseModel] | None = model
    description = None
    union = None
    rest = list(loc)
    while rest:
        name = str(rest.pop(0))
        parts.append(name)
        data = data.get(name) if isinstance(data, Mapping) else None
        info = section.model_fields.get(name) if section else None
        if info is None:
            section = None
            continue
        description = info.description
        section = section_of(info, data)
        if found := kinds_of(info):
            kinds, members = found
            union = _Union(".".join(parts), kinds, members, kinds(data) or kinds.default)
            if rest and rest[0] in members:
                rest.pop(0)
    return _Place(".".join(parts), description, union)


def _where(key: str, source: str, origins: Mapping[str, str]) -> str:
    """Returns the override that set a key, or else the source with the overrides of settings within it."""
    for name, text in origins.items():
        if key == name or key.startswith(name + "."):
            return text
    within = [text for name, text in origins.items() if not key or name.startswith(key + ".")]
    return f"{source} with {', '.join(within)}" if within else source


def _instead(model: type[BaseModel], place: _Place, given: Any) -> str:
    """Returns what to write in place of an unknown key, as the end of a sentence."""
    inside = f"{place.key}."
    moved = {
        old: new
        for old, new in getattr(model, "moved", {}).items()
        # Of a section that is gone, what was given of it.
        if old == place.key or (old.startswith(inside) and _lies_in(old.removeprefix(inside), given))
    }
    if moved:
        return " any more: " + "; ".join(f"{old} is {new}" for old, new in moved.items())
    if place.union:
        name, kinds, members, kind = place.union
        inner = place.key.removeprefix(f"{name}.")
        others = [other for other, section in members.items() if inner in known_keys(section)]
        if others:
            return (
                f" of {name}.{kinds.name} = {kind}, but of {' and '.join(others)}. Remove it, or set "
                f"{name}.{kinds.name}={others[0]}; {name}={{{kinds.name}: {kind}}} replaces a whole section"
            )
    return f"; {_suggestion(model, place)}"


def _lies_in(key: str, given: Any) -> bool:
    for part in key.split("."):
        if not isinstance(given, dict) or part not in given:
            return False
        given = given[part]
    return True


def _suggestion(model: type[BaseModel], place: _Place) -> str:
    key = place.key
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
    if place.union and parent == place.union.name:
        allowed = [f"{parent}.{own}" for own in place.union.members[place.union.kind].model_fields]
    allowed = allowed or [name for name in known if "." not in name]
    nearest = nearest or difflib.get_close_matches(leaf, [name.rpartition(".")[2] for name in allowed], n=1)
    if nearest:
        found = next((name for name in allowed if name.rpartition(".")[2] == nearest[0]), nearest[0])
        return f"did you mean {found}?"
    return f"allowed: {', '.join(allowed)}"
