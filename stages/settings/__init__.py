"""The configuration: one strict section per stage. Class defaults are the method; a YAML says what differs.

Semantic settings decide what is made: changing one on a half-done stage is refused. Runtime settings
(marked with `runtime`) only decide how: they are recorded and may change between starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Self, TypeVar

from pydantic import create_model, model_validator

from env.catalog import offer_of
from env.offer import TaskSettings
from pipeline.settings import Section
from stages.settings.actor import Actor
from stages.settings.credit import DecoupledClip, Grpo, VDapo
from stages.settings.critic import Critic
from stages.settings.critic_report import CriticReport
from stages.settings.cross_checks import check_sections
from stages.settings.drift import Drift, Stops
from stages.settings.engine import Engine, Scripted, Transformers, Vllm
from stages.settings.evaluation import Evaluation
from stages.settings.hardware import Hardware
from stages.settings.labels import Labels
from stages.settings.moved import MOVED
from stages.settings.rollouts import Rollouts
from stages.settings.run import Run
from stages.settings.sampling import Chain, Prompt, Sampling
from stages.settings.sft import Sft, TinyModel
from stages.settings.training import Deepspeed, Torch, Training

__all__ = [
    "Actor",
    "Chain",
    "Config",
    "Critic",
    "CriticReport",
    "DecoupledClip",
    "Deepspeed",
    "Drift",
    "Engine",
    "Evaluation",
    "Grpo",
    "Hardware",
    "Labels",
    "Prompt",
    "Rollouts",
    "Run",
    "Sampling",
    "Scripted",
    "Sft",
    "Stops",
    "TaskSettings",
    "TinyModel",
    "Torch",
    "Training",
    "Transformers",
    "VDapo",
    "Vllm",
]

PROMPT_TOKENS = 1024
"""Room for a task's own prompt; those of phone take a few hundred."""


class Config(Section):
    """Everything a run needs, and nothing it does not."""

    moved: ClassVar[dict[str, str]] = MOVED

    run: Run = Run()
    engine: Engine = Transformers()
    training: Training = Torch()
    hardware: Hardware = Hardware()
    tasks: TaskSettings = TaskSettings()
    sft: Sft = Sft()
    sampling: Sampling = Sampling()
    prompt: Prompt = Prompt()
    rollouts: Rollouts = Rollouts()
    labels: Labels = Labels()
    critic: Critic = Critic()
    critic_report: CriticReport = CriticReport()
    actor: Actor = Actor()
    evaluation: Evaluation = Evaluation()

    @property
    def row_tokens(self) -> int:
        """Longest row, prompt and response: positions of a tiny model, room in an engine's cache."""
        return PROMPT_TOKENS + self.prompt.max_feedback_tokens + self.sampling.max_response_tokens

    @classmethod
    def specialised(cls, data: Mapping[str, Any]) -> type[Self]:
        """Returns the class with the section `tasks` of the environment that the data name."""
        tasks = data.get("tasks")
        named = tasks.get("environment") if isinstance(tasks, dict) else None
        return _with_tasks(cls, named if isinstance(named, str) else TaskSettings().environment)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles plain values: a class that has an environment's section has no name to be found by."""
        return _of_values, (self.model_dump(),)

    @property
    def held_out(self) -> tuple[str, ...]:
        """Splits to evaluate on: as set, else val and the environment's first test split."""
        return self.run.held_out or offer_of(self.tasks.environment).splits[1:3]

    @model_validator(mode="after")
    def _sections_fit_each_other(self) -> Config:
        check_sections(self)
        return self


def _of_values(values: dict[str, Any]) -> Config:
    return Config.specialised(values).model_validate(values)


C = TypeVar("C", bound=Config)


@cache
def _with_tasks(config: type[C], environment: str) -> type[C]:
    section = offer_of(environment).settings
    return create_model(
        config.__name__,
        __base__=config,
        __module__=config.__module__,
        tasks=(section, section(environment=environment)),
    )
