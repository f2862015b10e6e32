"""What labels may cost: how many states a budget of tokens pays for, and what is sampled at most."""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from critics.labels.choose_states import choose_states
from pipeline.errors import ConfigError
from pipeline.types import Rollout, StateRef
from stages.settings import Config, Labels


def chosen_states(rollouts: Sequence[Rollout], settings: Labels, *, seed: int) -> tuple[list[StateRef], int]:
    """Returns the states to continue, as many as the budget pays for, and how many tokens that takes."""
    by_id = {rollout.rollout_id: rollout for rollout in rollouts}

    def choose(cap: int | None) -> list[StateRef]:
        return choose_states(rollouts, max_states=cap, guided_share=settings.guided_share, seed=seed)

    def tokens_of(states: Sequence[StateRef]) -> int:
        own = sum(tokens_after(by_id[state.rollout_id], state.step_index) for state in states)
        return settings.num_continuations * own

    states, budget = choose(settings.max_states), settings.max_tokens
    if budget is None:
        return states, tokens_of(states)
    if (for_a_state := tokens_of(choose(1))) > budget:
        raise ConfigError(
            f"labels.max_tokens = {budget}: the continuations of one state are expected to take "
            f"{for_a_state} tokens, so no state would be continued. Next: raise labels.max_tokens or lower "
            "labels.num_continuations"
        )
    states = within_budget(choose, tokens_of, budget, len(states))
    return states, tokens_of(states)


def tokens_after(rollout: Rollout, step_index: int) -> int:
    """Returns the tokens that the rollout itself sampled from a state on: what a continuation will cost."""
    return sum(rollout.loss_mask[rollout.steps[step_index].token_start :])


def tokens_at_most(config: Config, continuations: int) -> int:
    """Returns the tokens that so many continuations sample at most.

    A budget cuts off after the shard that spends it; where shards overlap nothing is cut off.
    """
    labels, response = config.labels, config.sampling.max_response_tokens
    if labels.max_tokens is None or config.engine.overlap_shards:
        return continuations * response
    shard = config.run.per_shard(labels.num_continuations) * labels.num_continuations
    return min(continuations * response, labels.max_tokens + shard * response)


def within_budget(
    choose: Callable[[int], list[StateRef]],
    tokens_of: Callable[[list[StateRef]], int],
    max_tokens: int,
    most: int,
) -> list[StateRef]:
    """Returns as many states, at most `most`, as are expected to fit; more states never take less."""
    fits = bisect_right(range(1, most + 1), max_tokens, key=lambda number: tokens_of(choose(number)))
    return choose(fits)
