"""What is said of a configuration that cannot be used: where, got, allowed, the nearest right setting."""

import json
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from pydantic import BaseModel

from pipeline.settings import Kinds, kinds_of, known_keys, section_of


class _Place(NamedTuple):
    """Where in a configuration a problem lies, and the innermost section with kinds around it."""

    key: str
    description: str | None
    union: str  # the dotted name of that section, "" for none
    kinds: Kinds | None
    kind: str  # the one that is given


def explain(
    model: type[BaseModel], problem: Any, source: str, origins: Mapping[str, str], data: Mapping[str, Any]
) -> str:
    """Returns an entry of `ValidationError.errors()` as a sentence for who wrote the configuration.

    `origins` has the override that set a dotted key; `data` is the whole configuration as it was given.
    """
    place = _place_of(model, problem["loc"], data)
    key, kinds, given = place.key, place.kinds, problem.get("input")
    where = _where(key, source, origins)
    if problem["type"] == "extra_forbidden":
        return f"{where}: {key} is not a setting{_instead(model, place)}"
    if problem["type"] == "missing":
        return f"{where}: {key} is required and not given"
    got = json.dumps(given, ensure_ascii=False, default=str)
    got = got if len(got) <= 120 else got[:117] + "..."
    if kinds and key == place.union and problem["type"] != "value_error":  # of a kind's own validator
        named = f"{key}.{kinds.setting}"
        if not isinstance(given, dict):
            return f"{where}: {key} = {got}, but it is a section; did you mean {named}?"
        return f"{where}: {named} = {json.dumps(given[kinds.setting])}; allowed: {', '.join(kinds.sections)}"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ").removeprefix("String ")
    if not key:
        return f"{where}: {message}"
    meaning = f" ({place.description})" if place.description else ""
    # pydantic's own messages say what the value should be; those of our validators are sentences.
    joint = ", but it " if message.startswith("should ") else ": "
    return f"{where}: {key} = {got}{joint}{message}{meaning}"


def _place_of(model: type[BaseModel], loc: Sequence[Any], data: Any) -> _Place:
    """Returns the place of pydantic's location, in which each section with kinds adds the kind it took."""
    place = _Place("", None, "", None, "")
    section: type[BaseModel] | None = model
    rest = [str(name) for name in loc]
    while rest:
        name = rest.pop(0)
        info = section.model_fields.get(name) if section else None
        data = data.get(name) if isinstance(data, Mapping) else None
        key = f"{place.key}.{name}".removeprefix(".")
        place = place._replace(key=key, description=info.description if info else place.description)
        section = section_of(info, data) if info else None
        if info and (kinds := kinds_of(info)):
            kind = rest.pop(0) if rest else kinds.default
            place = place._replace(union=key, kinds=kinds, kind=kind)
    return place


def _where(key: str, source: str, origins: Mapping[str, str]) -> str:
    """Returns the source, with the overrides of a key, of what it lies in or of what lies in it."""
    near = [
        text
        for name, text in origins.items()
        if not key or f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.")
    ]
    return f"{source} with {', '.join(near)}" if near else source


def _instead(model: type[BaseModel], place: _Place) -> str:
    """Returns what to write in place of an unknown key, as the end of a sentence."""
    key, union, kinds, kind = place.key, place.union, place.kinds, place.kind
    own = [name for name in known_keys(model) if name.rpartition(".")[0] == key.rpartition(".")[0]]
    if kinds:
        inner = key.removeprefix(f"{union}.")
        others = [other for other, section in kinds.sections.items() if inner in known_keys(section)]
        if others:
            return (
                f" of {union}.{kinds.setting} = {kind}, but of {' and '.join(others)}. Remove it, or set "
                f"{union}.{kinds.setting}={others[0]}; {union}={{{kinds.setting}: {kind}}} replaces a whole "
                "section"
            )
        of_kind = known_keys(kinds.sections[kind], f"{union}.")
        own = [name for name in own if name in of_kind]
    return f"; {_suggestion(key, own, [*own, *known_keys(model, only_default=True)])}"


def _suggestion(key: str, own: Sequence[str], known: Sequence[str]) -> str:
    """Returns the name most like that of a key, in its own section (`own`) rather than in another one.

    Of another section's kinds the default alone: nobody who sets `sampling.temperature` means the server's.
    """
    leaf = key.rpartition(".")[2]

    def likeness(name: str) -> tuple[float, bool]:
        alike = SequenceMatcher(None, leaf, name.rpartition(".")[2]).ratio()
        return alike + 0.2 * (name in own), name.partition(".")[0] == key.partition(".")[0]

    nearest = max(known, key=likeness)
    if likeness(nearest)[0] >= 0.8:
        return f"did you mean {nearest}?"
    return f"allowed: {', '.join(own or [name for name in known if '.' not in name])}"
