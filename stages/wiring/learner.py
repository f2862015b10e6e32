"""What an actor holds while it trains: its policy in trainer and engine, a reference, the frozen critic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from critics.drift.state import DriftState
from pipeline.engines.gpu_sharing import Turns
from stages.settings.engine import shares_gpus
from stages.wiring.build import load_critic, make_engine, make_trainer
from stages.wiring.player import make_player

if TYPE_CHECKING:
    from critics.frozen.contract import FrozenCritic
    from env.play.player import Player
    from pipeline.engines import Engine
    from pipeline.models.policy import Policy
    from pipeline.training import Trainer
    from stages.settings import Config


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
    """All that holds memory of GPUs.

    Attributes:
        trainer: of the actor.
        reference: the starting policy; None without a KL term.
        engine: samples the actor.
        critic: None where no values are needed.
        config: of the run.
        policy: the starting policy.
    """

    trainer: Trainer
    reference: Trainer | None
    engine: Engine
    critic: FrozenCritic | None
    config: Config
    policy: Policy

    def synced(self) -> Player:
        """Returns a player of the trainer's present weights, which the engine has loaded."""
        from pipeline.models.policy import weights_digest

        weights = self.trainer.weights()
        self.engine.load_weights(weights, weights_digest(weights))
        return make_player(self.config, self.policy, engine=self.engine)


@contextmanager
def held(
    config: Config, policy: Policy, *, kl: float, critic: Path | None, checkpoint: Path | None
) -> Iterator[Learner]:
    """Holds a learner, and gives the memory of everything in it back at the end.

    Args:
        config: of the run.
        policy: the starting policy.
        kl: coefficient of the KL to it; 0 needs no reference.
        critic: its folder; None where no values are needed.
        checkpoint: that the trainer goes on from; None begins.
    """
    settings, turns = config.actor, Turns(shares_gpus(config.engine))

    def rate(done: int) -> float:
        return settings.learning_rate * min(1.0, (done + 1) / max(1, settings.warmup_updates))

    with ExitStack() as stack:
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
        engine = turns.engine(lambda: make_engine(config, replace(policy)))
        stack.callback(engine.close)
        yield Learner(trainer, reference, engine, frozen, config, policy)
