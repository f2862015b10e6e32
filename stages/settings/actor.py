"""The actor's training."""

from __future__ import annotations

from pipeline.settings import Section, runtime, setting
from stages.settings.credit import Credit, VDapo
from stages.settings.drift import Stops
from stages.settings.sampling import Chain


class Actor(Section):
    """The actor's training."""

    credit: Credit = VDapo()
    num_iterations: int = setting(100, ge=1, description="rounds of fresh rollouts")
    tasks_per_update: int = setting(32, ge=1, description="tasks with kept sets per update")
    updates_per_iteration: int = setting(1, ge=1, description="optimizer steps on each iteration's rollouts")
    max_refills: int = setting(
        10,
        ge=0,
        description="dynamic sampling: rounds of more tasks per iteration",
        source="the recipe of 2503.14476",
    )
    learning_rate: float = setting(1e-6, gt=0, description="constant after warm-up", source="2503.14476")
    warmup_updates: int = setting(10, ge=0, description="linear warm-up")
    chain: Chain = Chain()
    checkpoint_every: int = runtime(10, ge=1, description="iterations between checkpoints")
    evaluate_every: int = setting(
        5, ge=1, description="iterations between looks at val, for the curve only", advanced=True
    )
    evaluate_tasks: int = setting(100, ge=1, description="val tasks of such a look", advanced=True)
    stops: Stops = Stops()
