"""What labels may cost: how many states a budget of tokens pays for, and what is sampled at most."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from critics.labels.choose_states import choose_states
from pipeline.errors import ConfigError
from pipeline.types import Rollout, StateRef
from stages.settings import Config, Labels
from stages.settings.engine import overlaps_shards


def chosen_states(rollouts: Sequence[Rollout], settings: Labels, *, seed: int) -> tuple[list[StateRef], int]:
    """Returns the states to continue, as many as the budget pays for, and how many tokens that should take.

    Raises:
        ConfigError: the budget pays for no state.
    """
    by_id = {rollout.rollout_id: rollout for rollout in rollouts}

    def choose(cap: int | None) -> list[StateRef]:
        return choose_states(rollouts, max_states=cap, guided_share=settings.guided_share, seed=seed)

    def tokens_of(states: Sequence[StateRef]) -> int:
        own = sum(tokens_after(by_id[state.rollout_id], state.step_index) for state in states)
        return settings.num_continuations * own

    states = choose(settings.max_states)
    if settings.max_tokens is not None:
        check_budget(settings.max_tokens, tokens_of(choose(1)))
        states = within_budget(choose, tokens_of, settings.max_tokens, len(states))
    return states, tokens_of(states)


def tokens_after(rollout: Rollout, step_index: int) -> int:
    """Returns the tokens that the rollout itself sampled from a state on: what a continuation will cost."""
    return sum(rollout.loss_mask[rollout.steps[step_index].token_start :])


def tokens_at_most(config: Config, continuations: int) -> int:
    """Returns the tokens that so many continuations sample at most.

    A budget cuts off after the shard that spends it; where shards overlap nothing is cut off.
    """
    labels, response = config.labels, config.sampling.max_response_tokens
    if labels.max_tokens is None or overlaps_shards(config.engine):
        return continuations * response
    shard = config.run.per_shard(labels.num_continuations) * labels.num_continuations
    return min(continuations * response, labels.max_tokens + shard * response)


def check_budget(max_tokens: int, for_a_state: int) -> None:
    """Raises ConfigError unless the budget pays for the continuations of one state.

    Args:
        max_tokens: the budget.
        for_a_state: tokens that the continuations of the first state are expected to take.
    """
    if for_a_state > max_tokens:
        raise ConfigError(
            f"labels.max_tokens = {max_tokens}: the continuations of one state are expected to take "
            f"{for_a_state} tokens, so no state would be continued. Next: raise labels.max_tokens or lower "
            "labels.num_continuations"
        )


def within_budget(
    choose: Callable[[int], list[StateRef]],
    tokens_of: Callable[[list[StateRef]], int],
    max_tokens: int,
    most: int,
) -> list[StateRef]:
    """Returns as many states as are expected to fit the budget, spread over the tasks like any choice.

    Args:
        choose: a cap -> states.
        tokens_of: states -> tokens that their continuations are expected to take.
        max_tokens: the budget.
        most: the cap without a budget.
    """
    fits, too_many = 0, most + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if tokens_of(choose(middle)) <= max_tokens:
            fits = middle
        else:
            too_many = middle
    return choose(fits)
