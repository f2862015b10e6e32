"""What each stage samples and trains at most."""

from __future__ import annotations

from dataclasses import dataclass

from env.catalog import offer_of
from env.play.continuations import SIBLING_SIZE
from stages.evaluation import NUM_ATTEMPTS
from stages.settings import Chain, Config
from stages.wiring.label_budget import tokens_at_most


@dataclass(frozen=True, slots=True)
class Work:
    """What one stage does at most.

    Attributes:
        stage: its name.
        rollouts: sampled.
        sampled_tokens: of these, at the longest response.
        trained_tokens: over all its updates.
        times: how often its models are made and kept.
    """

    stage: str
    rollouts: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    times: int = 1


def rollouts_of_chain(chain: Chain, num_tasks: int) -> int:
    """Returns the rollouts of one group per task, at most."""
    free = round(chain.feedback_free_share * num_tasks)
    return free * chain.feedback_free_draws + (num_tasks - free) * chain.num_attempts * chain.draws


def num_checks(config: Config) -> int:
    """Returns the paid checks of the critic, at most."""
    actor, credit = config.actor, config.actor.credit
    if credit.mode != "v_dapo" or not credit.drift.paid_every:
        return 0
    updates = actor.num_iterations * actor.updates_per_iteration
    return min(actor.num_iterations - 1, updates // credit.drift.paid_every)


def num_refreshes(config: Config) -> int:
    """Returns how often the critic is refreshed for the actor, at most."""
    credit = config.actor.credit
    if credit.mode != "v_dapo":
        return 0
    most = {"never": 0, "once": 1, "on_drift": config.actor.num_iterations}[credit.drift.refresh]
    return min(most, num_checks(config))


def checks_of_drift(config: Config, turns: int) -> int:
    """Returns the continuations of all paid checks of the critic, at most."""
    if config.actor.credit.mode != "v_dapo":
        return 0
    drift = config.actor.credit.drift
    states = drift.states + turns - 1  # whole rollouts
    return num_checks(config) * states * drift.num_continuations


def work_of(config: Config) -> list[Work]:
    """Returns what each stage samples and trains at most."""
    turns = offer_of(config.tasks.environment).turns_at_most(config.tasks)
    rollouts = rollouts_of_chain(config.rollouts.chain, config.rollouts.num_tasks or config.tasks.num_train)
    response = config.sampling.max_response_tokens
    states = config.labels.max_states or rollouts * turns  # every step may be wrong
    labels = states * config.labels.num_continuations
    label_tokens = tokens_at_most(config, labels)
    report = config.critic_report
    unseen = [split for split in config.held_out if split != "val"]  # whose clusters are known
    audited = len(unseen) * report.tasks_per_split * (1 + report.guided)
    heard = report.draws + turns * report.num_continuations  # of an audited task and context
    sets = min(report.sibling_sets, len(unseen) * report.tasks_per_split)
    siblings = sets * SIBLING_SIZE * (1 + report.num_continuations)
    fitted = report.fit_tasks * turns * report.num_continuations
    heard_in_all = audited * heard + siblings + fitted
    fitted_rollouts = rollouts + labels * config.critic.fit_continuations
    critic_tokens = int(fitted_rollouts * response * config.critic.max_epochs)
    actor = config.actor
    tasks = actor.tasks_per_update * actor.updates_per_iteration
    trained = actor.num_iterations * rollouts_of_chain(actor.chain, tasks)
    sampled = trained * (1 + actor.max_refills) + checks_of_drift(config, turns)
    evaluation = config.evaluation
    sizes = {"val": config.tasks.num_val}
    evaluated = sum(sizes.get(split, config.tasks.num_test) for split in config.held_out)
    per_task = 2 * (evaluation.draws + 1 + NUM_ATTEMPTS)
    sft_rows = config.sft.num_updates * config.sft.batch_rows
    work = [
        Work("sft", trained_tokens=sft_rows * response),
        Work("rollouts", rollouts, rollouts * response),
        Work("labels", labels, label_tokens),
        Work("critic", trained_tokens=critic_tokens),
        Work("critic_report", heard_in_all, heard_in_all * response),
        Work(
            "actor",
            sampled,
            sampled * response,
            trained * response,
        ),
        Work(
            "evaluation",
            evaluated * per_task,
            evaluated * per_task * response,
        ),
    ]
    if refreshes := num_refreshes(config):
        again = rollouts + labels + heard_in_all
        tokens = (rollouts + heard_in_all) * response + label_tokens
        work.append(
            Work("refresh", refreshes * again, refreshes * tokens, refreshes * critic_tokens, refreshes)
        )
    return work
