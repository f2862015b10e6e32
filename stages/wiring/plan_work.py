"""What each stage samples, trains and stores at most."""

from dataclasses import dataclass

from env.catalog import offer_of
from env.play.continuations import SIBLING_SIZE
from stages.settings import Actor, Config
from stages.settings.sampling import Chain

TOKEN_BYTES = 4.2  # of one in Parquet: id 0.9, log-probability 3.3
EXPORT_BYTES = 4  # of a parameter: fp32 weight
CHECKPOINT_BYTES = 3 * 12
"""Of a trained one: weight and two moments, of two checkpoints and one that is being written."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one stage does at most."""

    stage: str
    rollouts: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    model_bytes: int = 0
    passing_bytes: int = 0  # that are gone when it is complete
    keeps_tokens: bool = True  # of what it samples

    @property
    def kept_gb(self) -> float:
        """GB of rollouts and models that stay."""
        return (self.sampled_tokens * TOKEN_BYTES * self.keeps_tokens + self.model_bytes) / 1e9

    @property
    def figures(self) -> tuple[float, ...]:
        """Rollouts, sampled tokens, trained tokens, GB that stay."""
        return self.rollouts, self.sampled_tokens, self.trained_tokens, self.kept_gb


def work_of(config: Config, policy: int = 0, critic: int = 0, more_steps: int = 0) -> list[Work]:
    """Returns what each stage samples, at the longest response, and trains, of so many parameters.

    The actor's looks at val and the refreshes of its critic are beside it. `more_steps` are those of each
    rollout beyond what its environment reckons with.
    """
    steps = offer_of(config.tasks.environment).steps_at_most(config.tasks) + more_steps
    response, sft, actor, report = (
        config.sampling.max_response_tokens, config.sft, config.actor, config.critic_report
    )  # fmt: skip
    num_train, num_tasks = config.tasks.num_train, config.rollouts.num_tasks
    num_tasks = num_train if num_tasks is None else num_tasks  # 0: what is recorded alone, not counted
    rollouts, labels, critic_tokens = work_before_a_critic(config, num_tasks, steps)

    tasks = audited_tasks(config)
    each = tasks * report.rollouts_per_task(steps)
    siblings = min(report.sibling_sets, tasks) * SIBLING_SIZE * (1 + report.num_continuations)
    audit = each + siblings + report.fit_tasks * steps * report.num_continuations

    trained = actor.num_iterations * rollouts_of_chain(
        actor.chain, actor.tasks_per_update * actor.updates_per_iteration
    )
    checked, refreshes = watch_of(actor, steps)
    sampled = trained * actor.rounds_at_most * (1 + tried_of(actor, steps)) + checked
    leaves = actor.credit.branching if actor.credit.mode == "tree_rpo" else 1
    trainers = 1 + (actor.credit.mode == "actor_critic")  # of the policy and of its value head
    looks = (1 + -(-actor.num_iterations // actor.evaluate_every)) * min(
        actor.evaluate_tasks, config.tasks.num_held_out
    )
    held_out = len(config.held_out) * config.tasks.num_held_out
    evaluated = held_out * 2 * (config.evaluation.draws * config.evaluation.num_attempts + 1)

    has_stored = config.stored.objective.kind != "none"
    stored = (rollouts + labels) * config.stored.max_epochs * response

    exported, passing = EXPORT_BYTES * policy, CHECKPOINT_BYTES * policy
    taught = passing if sft.num_updates else 0
    refreshed = EXPORT_BYTES * critic + 2 * exported  # its actor, exported and adopted
    others = actor.credit.drift.refresh_tasks if actor.credit.mode == "v_dapo" else None
    *again, tokens_again = work_before_a_critic(config, others or num_tasks or num_train, steps)
    sampled_again = sum(again) + audit
    work = [
        Work("sft", 0, 0, sft.num_updates * sft.batch_rows * response, exported, taught),
        Work("rollouts", rollouts, rollouts * response),
        Work("labels", labels, labels * response),
        Work("critic", 0, 0, critic_tokens, EXPORT_BYTES * critic, CHECKPOINT_BYTES * critic),
        Work("critic_report", audit, audit * response),
        # A look that is kept is exported, and a checkpoint saved, before the former one goes.
        *([Work("stored", 0, 0, stored, exported, passing + exported)] * has_stored),
        Work(
            "actor",
            sampled,
            sampled * response,
            trained * leaves * actor.passes * response * trainers,
            *(exported, passing * trainers + CHECKPOINT_BYTES * critic * (refreshes > 0)),
        ),
        Work("looks", looks, looks * response, keeps_tokens=False),
        Work("evaluation", evaluated, evaluated * response),
        Work(
            "refresh",
            refreshes * sampled_again,
            refreshes * sampled_again * response,
            refreshes * tokens_again,
            refreshes * refreshed,
        ),
    ]
    return work if refreshes else work[:-1]


def work_before_a_critic(config: Config, num_tasks: int, steps: int) -> tuple[int, int, int]:
    """Returns the rollouts of so many tasks, the continuations that label them, the tokens of the fit."""
    rollouts = rollouts_of_chain(config.rollouts.chain, num_tasks)
    states = config.labels.max_states or rollouts * steps  # every step may be wrong
    labels = states * config.labels.num_continuations
    fitted = rollouts + labels * config.critic.fit_continuations
    return rollouts, labels, int(fitted * config.sampling.max_response_tokens * config.critic.max_epochs)


def audited_tasks(config: Config) -> int:
    """Returns the tasks that an audit takes: of held-out splits whose clusters have no training task."""
    shared = offer_of(config.tasks.environment).val_shares_clusters
    splits = [name for name in config.held_out if not (shared and name == "val")]
    return min(config.critic_report.tasks_per_split, config.tasks.num_held_out) * len(splits)


def rollouts_of_chain(chain: Chain, num_tasks: int) -> int:
    """Returns the rollouts of one group per task."""
    free = round(chain.feedback_free_share * num_tasks)
    return free * chain.feedback_free_draws + (num_tasks - free) * chain.num_attempts * chain.draws


def watch_of(actor: Actor, steps: int) -> tuple[int, int]:
    """Returns the continuations of all paid checks of the critic, and how often it is refreshed."""
    if actor.credit.mode != "v_dapo" or not actor.needs_critic:
        return 0, 0
    drift = actor.credit.drift
    checks = min(actor.num_iterations - 1, actor.num_updates // drift.paid_every) if drift.paid_every else 0
    states = drift.states + steps - 1  # whole rollouts
    refreshes = min(checks, {"refresh": actor.num_iterations, "refresh_once": 1}.get(drift.react, 0))
    refreshes += drift.react == "refresh_first"
    return checks * states * drift.num_continuations, refreshes


def tried_of(actor: Actor, steps: int) -> int:
    """Returns the continuations of each rollout: those that tell the values of its states, or a tree's."""
    if actor.credit.mode == "tree_rpo":
        return actor.credit.branching - 1
    if actor.credit.mode == "v_dapo" and actor.credit.needs_values and actor.credit.values == "oracle":
        return steps * actor.credit.drift.num_continuations
    return 0
