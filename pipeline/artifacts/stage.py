"""What a stage file declares, and what identifies the result: its settings, code version and inputs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.manifest import key_of
from pipeline.artifacts.plan import Plan
from pipeline.artifacts.start import C, Start
from pipeline.config import split_settings

W = TypeVar("W")


@dataclass(frozen=True)
class Stage(Generic[C, W]):
    """What a stage file declares.

    Attributes:
        name: of the stage, its make target, its folder and its section.
        code_version: raised when the output changes its meaning.
        inputs: config -> names of the stages that it reads.
        sections: settings that decide what it makes, as `section`, `section.key` and so on; `run.seed` always
            does. Those that an input was made with too must be the same.
        plan: says what it will make, after cheap checks; --dry-run ends there.
        make: makes it, given the plan's `work`: a function, or "module:function". A module that is named is
            loaded only now, so that a stage that is up to date, or only planned, answers without torch.
    """

    name: str
    code_version: int
    inputs: Callable[[C], tuple[str, ...]]
    sections: tuple[str, ...]
    plan: Callable[[Start[C]], Plan[W]]
    make: Callable[[Start[C], W], None] | str

    @property
    def body(self) -> Callable[[Start[C], W], None]:
        """`make` itself."""
        if not isinstance(self.make, str):
            return self.make
        module, _, function = self.make.partition(":")
        body: Callable[[Start[C], W], None] = getattr(importlib.import_module(module), function)
        return body


def identity_of(
    stage: Stage[Any, Any], config: Any, inputs: Mapping[str, Artifact]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what decides the stage's content, its key included, and the runtime settings beside it."""
    semantic: dict[str, Any] = {"run": {"seed": config.run.seed}}
    runtime_settings: dict[str, Any] = {"run": split_settings(config.run)[1]}
    for name in stage.sections:
        section, _, key = name.rpartition(".")
        owner = attrgetter(section)(config) if section else config
        if isinstance(getattr(owner, key), BaseModel):
            semantic[name], runtime_settings[name] = split_settings(getattr(owner, key))
        else:
            semantic[name] = owner.model_dump(mode="json", include={key})[key]
    identity = {
        "stage": stage.name,
        "code_version": stage.code_version,
        "settings": semantic,
        "inputs": {name: artifact.content_digest for name, artifact in inputs.items()},
    }
    return {**identity, "stage_key": key_of(identity)}, runtime_settings
