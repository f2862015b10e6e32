"""What labels may cost: how many states a budget of tokens pays for, and what is sampled at most."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from critics.labels.choose_states import StateRef
    from stages.settings import Config


def tokens_at_most(config: Config, continuations: int) -> int:
    """Returns the tokens that so many continuations sample at most.

    A budget cuts off after the shard that spends it; where shards overlap nothing is cut off.
    """
    labels, response = config.labels, config.sampling.max_response_tokens
    if labels.max_tokens is None or config.engine.overlap_shards:
        return continuations * response
    of_states = labels.states_per_shard * labels.num_continuations
    of_sets = max(labels.states_per_shard, labels.sibling_size) * (1 + labels.sibling_continuations)
    shard = max(of_states, of_sets if labels.sibling_sets else 0)
    return min(continuations * response, labels.max_tokens + shard * response)


def check_budget(max_tokens: int, for_sets: int, for_a_state: int) -> None:
    """Raises ConfigError unless something is left of the budget for states, and pays for one.

    Args:
        max_tokens: the budget.
        for_sets: tokens that the sibling sets are expected to take.
        for_a_state: tokens that the continuations of the first state are expected to take.
    """
    left = max_tokens - for_sets
    if left <= 0 or for_a_state > left:
        lower = "labels.sibling_sets" if for_sets else "labels.num_continuations"
        raise ConfigError(
            f"labels.max_tokens = {max_tokens}: sibling sets are expected to take {for_sets} tokens and the "
            f"continuations of one state {for_a_state}, so no state would be continued. Next: raise "
            f"labels.max_tokens or lower {lower}"
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
