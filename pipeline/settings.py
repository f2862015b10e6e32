"""Sections of settings as frozen pydantic models, and what each setting says of itself.

Every setting is semantic (it decides what is made, and enters the stage key) or runtime (it decides only how,
is recorded, and may change between two starts of one stage), and basic or advanced (who needs it).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, JsonValue
from pydantic.fields import FieldInfo


class Section(BaseModel):
    """A part of the configuration: frozen, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    moved: ClassVar[Mapping[str, str]] = {}
    """Dotted keys of earlier versions -> what to write instead; read on the outermost section."""

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
    """Returns a pydantic field for a setting.

    Args:
        default: value when the YAML does not say.
        description: what it does, with its unit.
        source: where the default comes from: a paper, a measurement; empty for a plain choice of ours.
        advanced: whether only an ablation, a baseline or an unusual machine needs it.
        runtime: whether it decides only how, not what.
        constraints: pydantic's own, such as `ge=1`.
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


@dataclass(frozen=True, slots=True)
class Kinds:
    """How the members of a union of sections are told apart: by one setting, a Literal in each member."""

    name: str
    default: str  # of a section that does not name its kind

    @property
    def __name__(self) -> str:
        """The setting's name; pydantic asks every discriminator for one."""
        return self.name

    def __call__(self, given: Any) -> str | None:
        """Returns the kind of plain data or of a section; None of what is neither."""
        if isinstance(given, dict):
            return str(given.get(self.name, self.default))
        return getattr(given, self.name, None) if isinstance(given, BaseModel) else None


def by_kind(name: str, default: str) -> Discriminator:
    """Returns what makes an annotated union of tagged sections a discriminated one.

    Example:
        >>> from typing import Annotated, Literal
        >>> from pydantic import Tag
        >>> class Torch(Section):
        ...     backend: Literal["torch"] = "torch"
        >>> class Deepspeed(Section):
        ...     backend: Literal["deepspeed"] = "deepspeed"
        >>> Training = Annotated[
        ...     Annotated[Torch, Tag("torch")] | Annotated[Deepspeed, Tag("deepspeed")],
        ...     by_kind("backend", "torch"),
        ... ]
    """
    return Discriminator(Kinds(name, default))


def kinds_of(info: FieldInfo) -> tuple[Kinds, dict[str, type[BaseModel]]] | None:
    """Returns how a union's sections are told apart, and kind -> section; None of any other field."""
    for mark in info.metadata:
        if isinstance(mark, Discriminator) and isinstance(mark.discriminator, Kinds):
            members = {}
            for member in get_args(info.annotation):
                section, tag = get_args(member)
                members[tag.tag] = section
            return mark.discriminator, members
    return None


def section_of(info: FieldInfo, given: Any = None) -> type[BaseModel] | None:
    """Returns a field's section, of the kind that the given data name; None of a plain setting."""
    if found := kinds_of(info):
        kinds, members = found
        return members.get(kinds(given) or kinds.default)
    section = info.annotation
    return section if isinstance(section, type) and issubclass(section, BaseModel) else None


def known_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yields the dotted name of every section and setting, of all kinds, each once."""
    seen = set()
    for name, info in model.model_fields.items():
        key = prefix + name
        yield key
        found = kinds_of(info)
        sections = list(found[1].values()) if found else [section_of(info)]
        for section in filter(None, sections):
            for inner in known_keys(section, f"{key}."):
                if inner not in seen:
                    seen.add(inner)
                    yield inner
