"""How many texts of feedback a model writes."""

from stages.settings import Config
from stages.settings.sampling import Chain
from stages.wiring.plan_work import audited_tasks, watch_of


def texts_of(config: Config) -> int:
    """Returns how many texts all stages ask for at most: one on each attempt that another may follow."""
    actor, report, num_tasks = config.actor, config.critic_report, config.rollouts.num_tasks
    num_tasks = config.tasks.num_train if num_tasks is None else num_tasks
    visited = actor.tasks_per_update * actor.updates_per_iteration
    _, refreshes = watch_of(actor, 0)
    others = actor.credit.drift.refresh_tasks if actor.credit.mode == "v_dapo" else None
    again = others or num_tasks or config.tasks.num_train
    audited = audited_tasks(config) * report.guided * report.draws
    held_out = len(config.held_out) * config.tasks.num_held_out
    return (
        _texts_of_chain(config.rollouts.chain, num_tasks)
        + refreshes * _texts_of_chain(config.rollouts.chain, again)
        + audited * (1 + refreshes)
        + _texts_of_chain(actor.chain, visited) * actor.num_iterations * actor.rounds_at_most
        + held_out * 2 * config.evaluation.draws * (config.evaluation.num_attempts - 1)
    )


def _texts_of_chain(chain: Chain, num_tasks: int) -> int:
    guided = num_tasks - round(chain.feedback_free_share * num_tasks)
    return guided * (chain.num_attempts - 1) * chain.draws
