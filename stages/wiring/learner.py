"""What an actor holds while it trains: its policy in trainer and engine, a reference, the frozen critic."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from critics.drift.state import DriftState
from critics.fit.online import OnlineCritic
from critics.frozen.critic import FrozenCritic
from critics.frozen.model import make_critic
from env.play.team import Team
from env.play.units import PART_EPISODES
from pipeline.artifacts.checkpoints import Checkpoints, FileFacts
from pipeline.credit import Credit
from pipeline.credit.history import History
from pipeline.gpu_sharing import Turns
from pipeline.models.policy import Policy, weights_digest
from pipeline.pace import Pace
from pipeline.training import Trainer
from pipeline.training.protocol import Scorer, Unadapted
from pipeline.types import Rollout
from stages.settings import Config
from stages.wiring.build import load_critic, make_policy_trainer, make_trainer, pace_of
from stages.wiring.hands import Recipe, make_hands
from stages.wiring.player import Seat

VALUE_HEAD = "value_head"
"""Folder of an online critic in a checkpoint."""


@dataclass(frozen=True, slots=True)
class ActorState:
    """What a checkpoint holds beside the weights."""

    credit: dict[str, float]  # what runs from update to update
    drift: DriftState
    iterations: int = 0
    empty_running: int = 0  # iterations without anything to train on, one after another
    history: History = field(default_factory=dict)  # if tasks are skipped by it

    @classmethod
    def of_json(cls, state: Mapping[str, Any]) -> Self:
        """Returns the state that a checkpoint holds, which is `asdict` of it."""
        return cls(**{**state, "drift": DriftState(**state["drift"])})


@dataclass(frozen=True, slots=True)
class Learner:
    """All that holds memory of GPUs, and whoever plays the actor; None is what its credit does not need."""

    trainer: Trainer
    reference: Scorer | None
    team: Team
    critic: FrozenCritic | None
    online: OnlineCritic | None
    pace: Pace

    def save(self, checkpoints: Checkpoints, state: ActorState) -> None:
        """Saves all that is trained, and the state beside it."""
        with self.pace.clock.at("save"):
            checkpoints.save(self.trainer.num_updates, self._write, asdict(state))

    def _write(self, folder: Path) -> FileFacts:
        files = dict(self.trainer.save_checkpoint(folder))
        if self.online is not None:
            of_head = self.online.trainer.save_checkpoint(folder / VALUE_HEAD)
            files |= {f"{VALUE_HEAD}/{name}": facts for name, facts in of_head.items()}
        return files

    def synced(self) -> Team:
        """Returns the team of the trainer's present weights, under their digest."""
        with self.pace.clock.at("hand_off"):
            weights = self.trainer.weights()
            return self.team.with_weights(weights, weights_digest(weights))


@contextmanager
def held(
    config: Config,
    policy: Policy,
    log_folder: Path,  # of processes that play
    *,
    credit: Credit,
    critic: Path | None,  # its folder; None where no values are needed
    checkpoint: Path | None,  # that training goes on from
    stored: Sequence[Rollout] = (),  # that a new value head learns from first
) -> Iterator[Learner]:
    """Holds a learner that starts from a policy, and gives the memory of everything in it back at the end."""
    settings, pace = config.actor, pace_of(config)
    turns = Turns(config.engine.shared_gpus, pace.clock)

    def rate(done: int) -> float:
        return settings.learning_rate * min(1.0, (done + 1) / max(1, settings.warmup_updates))

    with ExitStack() as stack:

        def trainer_of(make: Callable[[], Trainer], head: str = "policy") -> Trainer:
            trainer = pace.trainer(turns.trainer(make), policy.config, head)
            stack.callback(trainer.close)
            return trainer

        hands = make_hands(config, log_folder, Seat(replace(policy), turns.engine))
        stack.callback(hands.close)
        draws = max(settings.chain.draws, settings.chain.feedback_free_draws)
        episodes = settings.tasks_per_update * settings.updates_per_iteration * draws
        hands.start(max(1, round(episodes / PART_EPISODES)))  # they load while the rest is made
        frozen = load_critic(config, critic) if critic is not None else None
        judge = pace.timed(frozen, values="scoring", start_values="scoring", value_logits="scoring")
        if frozen is not None:
            stack.callback(frozen.close)
        trainer = trainer_of(partial(make_policy_trainer, config, policy, learning_rate=rate))
        reference: Scorer | None = None
        if credit.loss.kl > 0:
            adapted = config.training.lora_rank > 0
            reference = (
                Unadapted(trainer) if adapted else trainer_of(partial(make_policy_trainer, config, policy))
            )
        online = None
        if settings.credit.mode == "actor_critic":
            value_rate = settings.credit.value_learning_rate
            made = trainer_of(
                lambda: make_trainer(
                    config, make_critic(policy.folder), head="critic", learning_rate=lambda _: value_rate
                ),
                head="critic",
            )
            online = OnlineCritic(made, credit.view)
        if checkpoint is not None:
            trainer.load_checkpoint(checkpoint)
        if online is not None and checkpoint is not None:
            online.trainer.load_checkpoint(checkpoint / VALUE_HEAD)
        elif online is not None and stored:
            online.pretrain(stored, each=episodes // settings.updates_per_iteration, seed=config.run.seed)
        team = Team(hands, Recipe(config, policy.folder))
        yield Learner(trainer, reference, team, judge, online, pace)
