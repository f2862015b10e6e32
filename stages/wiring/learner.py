"""What an actor holds while it trains: its policy in trainer and engine, a reference, the frozen critic."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from critics.drift.state import DriftState
from critics.frozen.critic import FrozenCritic
from env.play.team import Team
from env.play.units import PART_EPISODES
from pipeline.credit.history import History
from pipeline.engines.gpu_sharing import Turns
from pipeline.models.policy import Policy, weights_digest
from pipeline.training import Trainer
from stages.settings import Config
from stages.wiring.build import load_critic, make_trainer
from stages.wiring.hands import Recipe, make_hands
from stages.wiring.player import Seat


@dataclass(frozen=True, slots=True)
class ActorState:
    """What a checkpoint holds beside the weights."""

    credit: dict[str, float]  # what runs from update to update
    drift: DriftState
    iterations: int = 0
    empty_running: int = 0  # updates without anything to train on, one after another
    history: History = field(default_factory=dict)  # if tasks are skipped by it

    @classmethod
    def of_json(cls, state: Mapping[str, Any]) -> Self:
        """Returns the state that a checkpoint holds, which is `asdict` of it."""
        return cls(**{**state, "drift": DriftState(**state["drift"])})


@dataclass(frozen=True, slots=True)
class Learner:
    """All that holds memory of GPUs, and whoever plays the actor; None is what its credit does not need."""

    trainer: Trainer
    reference: Trainer | None
    team: Team
    critic: FrozenCritic | None

    def synced(self) -> Team:
        """Returns the team of the trainer's present weights, under their digest."""
        weights = self.trainer.weights()
        return self.team.with_weights(weights, weights_digest(weights))


@contextmanager
def held(
    config: Config,
    policy: Policy,
    log_folder: Path,  # of processes that play
    *,
    kl: float,  # coefficient; 0 needs no reference
    critic: Path | None,  # its folder; None where no values are needed
    checkpoint: Path | None,  # that the trainer goes on from
) -> Iterator[Learner]:
    """Holds a learner that starts from a policy, and gives the memory of everything in it back at the end."""
    settings, turns = config.actor, Turns(config.engine.shared_gpus)

    def rate(done: int) -> float:
        return settings.learning_rate * min(1.0, (done + 1) / max(1, settings.warmup_updates))

    with ExitStack() as stack:

        def trainer_of(**options: Any) -> Trainer:
            # Each has weights of its own: `replace` makes a policy that has not been read yet.
            trainer = turns.trainer(
                lambda: make_trainer(config, replace(policy).model, head="policy", **options)
            )
            stack.callback(trainer.close)
            return trainer

        hands = make_hands(config, log_folder, Seat(replace(policy), turns.engine))
        stack.callback(hands.close)
        draws = max(settings.chain.draws, settings.chain.feedback_free_draws)
        episodes = settings.tasks_per_update * settings.updates_per_iteration * draws
        hands.start(max(1, round(episodes / PART_EPISODES)))  # they load while the rest is made
        frozen = load_critic(config, critic) if critic is not None else None
        if frozen is not None:
            stack.callback(frozen.close)
        trainer = trainer_of(learning_rate=rate)
        reference = trainer_of() if kl > 0 else None
        if checkpoint is not None:
            trainer.load_checkpoint(checkpoint)
        yield Learner(trainer, reference, Team(hands, Recipe(config, policy.folder)), frozen)
