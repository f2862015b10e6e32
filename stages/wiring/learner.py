"""What an actor holds while it trains: its policy in trainer and engine, a reference, the frozen critic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from critics.drift.state import DriftState
from critics.frozen.critic import FrozenCritic
from env.play.team import Team
from env.play.units import PART_EPISODES
from pipeline.engines.gpu_sharing import Turns
from pipeline.models.policy import Policy, weights_digest
from pipeline.training import Trainer
from stages.settings import Actor, Config
from stages.settings.engine import shares_gpus
from stages.wiring.build import load_critic, make_trainer
from stages.wiring.hands import Recipe, make_hands
from stages.wiring.player import Seat


@dataclass(frozen=True, slots=True)
class ActorState:
    """What a checkpoint holds beside the weights.

    Attributes:
        credit: what runs from update to update.
        drift: of the watch over the critic.
        iterations: that are done.
        empty_running: updates without anything to train on, one after another.
    """

    credit: dict[str, float]
    drift: DriftState
    iterations: int = 0
    empty_running: int = 0

    @classmethod
    def of_json(cls, state: Mapping[str, Any]) -> ActorState:
        """Returns the state that `to_json` wrote."""
        return cls(**{**state, "drift": DriftState.of_json(state["drift"])})

    def to_json(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        return {**asdict(self), "drift": self.drift.to_json()}


@dataclass(frozen=True, slots=True)
class Learner:
    """All that holds memory of GPUs, and whoever plays the actor.

    Attributes:
        trainer: of the actor.
        reference: the starting policy; None without a KL term.
        team: of the actor.
        critic: None where no values are needed.
    """

    trainer: Trainer
    reference: Trainer | None
    team: Team
    critic: FrozenCritic | None

    def synced(self) -> Team:
        """Returns the team of the trainer's present weights, under their digest."""
        weights = self.trainer.weights()
        return self.team.with_weights(weights, weights_digest(weights))


def parts_of(settings: Actor) -> int:
    """Returns about how many parts an iteration is cut into, each for a process of its own."""
    draws = max(settings.chain.draws, settings.chain.feedback_free_draws)
    return max(1, round(settings.tasks_per_update * settings.updates_per_iteration * draws / PART_EPISODES))


@contextmanager
def held(
    config: Config,
    policy: Policy,
    log_folder: Path,
    *,
    kl: float,
    critic: Path | None,
    checkpoint: Path | None,
) -> Iterator[Learner]:
    """Holds a learner, and gives the memory of everything in it back at the end.

    Args:
        config: of the run.
        policy: the starting policy.
        log_folder: where processes that play keep their logs.
        kl: coefficient of the KL to it; 0 needs no reference.
        critic: its folder; None where no values are needed.
        checkpoint: that the trainer goes on from; None begins.
    """
    settings, turns = config.actor, Turns(shares_gpus(config.engine))

    def rate(done: int) -> float:
        return settings.learning_rate * min(1.0, (done + 1) / max(1, settings.warmup_updates))

    with ExitStack() as stack:
        hands = make_hands(config, log_folder, Seat(replace(policy), turns.engine))
        stack.callback(hands.close)
        hands.start(parts_of(settings))  # they load what they need while the rest is made
        frozen = load_critic(config, critic) if critic is not None else None
        if frozen is not None:
            stack.callback(frozen.close)
        trainer = turns.trainer(
            lambda: make_trainer(
                config,
                replace(policy).model,  # weights of its own
                head="policy",
                learning_rate=rate,
            )
        )
        stack.callback(trainer.close)
        reference = None
        if kl > 0:
            reference = turns.trainer(lambda: make_trainer(config, replace(policy).model, head="policy"))
            stack.callback(reference.close)
        if checkpoint is not None:
            trainer.load_checkpoint(checkpoint)
        yield Learner(trainer, reference, Team(hands, Recipe(config, policy.folder)), frozen)
