"""The configuration: one strict section per stage. Class defaults are the method; a YAML says what differs.

Semantic settings decide what is made: changing one on a half-done stage is refused. Runtime settings
(marked with `runtime`) only decide how: they are recorded and may change between starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Self, TypeVar

from pydantic import create_model, model_validator

from env.catalog import offer_of
from env.chat.style import ChatStyle
from env.offer import TaskSettings
from pipeline.settings import Section
from stages.settings.actor import Actor
from stages.settings.comparison import Comparison
from stages.settings.critic import Critic, CriticReport, Labels
from stages.settings.engine import Engine, Transformers
from stages.settings.feedback import Feedback, Rules
from stages.settings.preferences import Dpo, Preferences
from stages.settings.rounds import Replay, Round
from stages.settings.run import Hardware, Run
from stages.settings.sampling import Evaluation, Prompt, Rollouts, Sampling
from stages.settings.sections_fit import check_sections_fit
from stages.settings.sft import Sft
from stages.settings.stored import Stored
from stages.settings.training import Torch, Training

PROMPT_TOKENS = 1024
"""Room for a task's own prompt."""


class Config(Section):
    """Everything a run needs, and nothing it does not."""

    run: Run = Run()
    engine: Engine = Transformers()
    training: Training = Torch()
    hardware: Hardware = Hardware()
    tasks: TaskSettings = TaskSettings()
    sft: Sft = Sft()
    sampling: Sampling = Sampling()
    prompt: Prompt = Prompt()
    feedback: Feedback = Rules()
    rollouts: Rollouts = Rollouts()
    labels: Labels = Labels()
    critic: Critic = Critic()
    critic_report: CriticReport = CriticReport()
    stored: Stored = Stored()
    actor: Actor = Actor()
    evaluation: Evaluation = Evaluation()
    preferences: Preferences = Preferences()
    dpo: Dpo = Dpo()
    comparison: Comparison = Comparison()
    replay: Replay = Replay()
    round: Round = Round()

    @property
    def row_tokens(self) -> int:
        """Longest row, prompt and response: positions of a tiny model, room in an engine's cache."""
        return PROMPT_TOKENS + self.prompt.max_feedback_tokens + self.sampling.max_response_tokens

    @property
    def has_recorders_critic(self) -> bool:
        """Whether labels are outcomes of recorded rollouts alone: the critic is of who was recorded."""
        return self.rollouts.num_tasks == 0 and self.labels.num_continuations == 0

    @property
    def held_out(self) -> tuple[str, ...]:
        """Splits to evaluate on: as set, else val and the environment's first test split."""
        return self.run.held_out or offer_of(self.tasks.environment).splits[1:3]

    @property
    def half_precision(self) -> bool:
        """Whether log-probabilities of engine or trainer have the errors of bf16."""
        return "bfloat16" in (self.engine.dtype, self.training.dtype)

    def style(self, tokenizer: Any = None) -> ChatStyle:
        """Returns how messages become text; with a tokenizer none of them can hold its added tokens."""
        environment = offer_of(self.tasks.environment)
        return environment.style(self.prompt.style, tokenizer, thinking=self.prompt.thinking)

    def gpus_wanted(self, *, engine: bool, training: bool) -> dict[str, int]:
        """Returns setting -> number of GPUs that a stage with an engine, with training, would use."""
        wanted = {}
        if engine and self.engine.kind == "vllm":
            replicas = self.engine.replicas * self.engine.tensor_parallel
            wanted["engine.replicas x engine.tensor_parallel"] = replicas
        if training and self.training.backend == "deepspeed":
            wanted["training.num_ranks"] = self.training.num_ranks
        return wanted

    @classmethod
    def specialised(cls, data: Mapping[str, Any]) -> type[Self]:
        """Returns the class with the section `tasks` of the environment that the data name."""
        tasks = data.get("tasks")
        named = tasks.get("environment") if isinstance(tasks, dict) else None
        return _with_tasks(cls, named if isinstance(named, str) else TaskSettings().environment)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles plain values: a class that has an environment's section has no name to be found by."""
        return _of_values, (self.model_dump(),)

    @model_validator(mode="after")
    def _sections_fit_each_other(self) -> Config:
        check_sections_fit(self)
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
