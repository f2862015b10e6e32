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
    shard = labels.states_per_shard * labels.num_continuations
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
