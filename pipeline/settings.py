"""Sections of settings as frozen pydantic models, and what each setting says of itself.

Every setting is semantic (it decides what is made, and enters the stage key) or runtime (it decides only how,
is recorded, and may change between two starts of one stage), and basic or advanced (who needs it).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.fields import FieldInfo


class Section(BaseModel):
    """A part of the configuration: frozen, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def specialised(cls, data: Mapping[str, Any]) -> type[Self]:
        """Returns the class that these data are of: this one, unless they say which sections there are."""
        return cls


def setting(
    default: Any,
    description: str,
    *,
    source: str = "",
    advanced: bool = False,
    runtime: bool = False,
    **constraints: Any,
) -> Any:
    """Returns a pydantic field for a setting, with pydantic's own constraints, such as `ge=1`.

    `source` says where the default comes from, a paper or a measurement; empty for a plain choice of ours.
    Only an ablation, a baseline or an unusual machine needs an `advanced` one.
    """
    marks: dict[str, JsonValue] = {"source": source, "advanced": advanced, "runtime": runtime}
    return Field(default, description=description, json_schema_extra=marks, **constraints)


def runtime(default: Any, description: str, **options: Any) -> Any:
    """Returns a pydantic field for a runtime setting: recorded, but no part of what a stage makes."""
    return setting(default, description, runtime=True, **options)


def mark_of(info: FieldInfo, name: str) -> Any:
    """Returns one of `setting`'s marks of a field: source, advanced or runtime."""
    extra = info.json_schema_extra
    return extra.get(name) if isinstance(extra, dict) else None


class Kinds(NamedTuple):
    """Sections of which a configuration has one: `Annotated[A | B, Field(discriminator=setting)]`."""

    setting: str  # a Literal in each of them tells them apart
    default: str  # kind of a section that does not name its own
    sections: dict[str, type[BaseModel]]


def kinds_of(info: FieldInfo) -> Kinds | None:
    """Returns the sections that a field may hold, by kind; None of a field with one section or none."""
    name = info.discriminator
    if not isinstance(name, str):
        return None
    default = getattr(info.get_default(call_default_factory=True), name)
    return Kinds(name, default, {of.model_fields[name].default: of for of in get_args(info.annotation)})


def section_of(info: FieldInfo, given: Any = None) -> type[BaseModel] | None:
    """Returns a field's section, of the kind that the given data name; None of a plain setting."""
    if kinds := kinds_of(info):
        named = given.get(kinds.setting) if isinstance(given, dict) else None
        return kinds.sections.get(str(named or kinds.default))
    section = info.annotation
    return section if isinstance(section, type) and issubclass(section, BaseModel) else None


def known_keys(model: type[BaseModel], prefix: str = "", *, only_default: bool = False) -> list[str]:
    """Returns the dotted name of every section and setting, of all kinds or the default ones, each once."""
    keys: dict[str, None] = {}
    for name, info in model.model_fields.items():
        keys[prefix + name] = None
        kinds = kinds_of(info)
        sections = kinds.sections.values() if kinds and not only_default else filter(None, [section_of(info)])
        for section in sections:
            keys |= dict.fromkeys(known_keys(section, f"{prefix}{name}.", only_default=only_default))
    return list(keys)
