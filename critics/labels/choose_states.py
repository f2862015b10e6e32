"""Which step states get fresh continuations.

A sample may label a state only if the state was chosen without looking at that sample. Fresh continuations
always qualify, so states may be chosen here by fractions of the final length and around located errors;
`soft_targets.py` never gives those choices the rollout's own outcome. Such choices still tell of what the
state does not show, a hidden rule for one, so no critic is calibrated on them.
"""

import math
from collections.abc import Mapping, Sequence

from pipeline.ids import digest
from pipeline.steps import state_tokens
from pipeline.types import Rollout, StateRef

ANCHORS = (0.3, 0.6, 0.9)
"""Chosen states, as shares of the response (start values)."""
START_EVERY = 4
"""One task in this many has the start of its episode as its first choice. The others have it after all else:
every rollout's own outcome tells of the start, and whether it is taken must not depend on how many other
states there are to choose from, for that depends on how the rollouts went."""


def candidate_steps(rollout: Rollout) -> tuple[int, ...]:
    """Returns the step indices of one rollout that may get continuations, ascending.

    s_0; for each of `ANCHORS` the step start nearest to it (the earlier on a tie); the states just before and
    just after each step with the verdict `wrong`.
    """
    if not rollout.steps:
        return ()
    last = rollout.steps[-1].step_index
    length = len(rollout.response_token_ids)
    chosen = {rollout.steps[0].step_index}
    for share in ANCHORS:
        nearest = min(
            rollout.steps, key=lambda step: (abs(step.token_start - share * length), step.step_index)
        )
        chosen.add(nearest.step_index)
    for step in rollout.steps:
        if step.verifier_status == "wrong":
            chosen.update(i for i in (step.step_index, step.step_index + 1) if i <= last)
    return tuple(sorted(chosen))


def choose_states(
    rollouts: Sequence[Rollout], *, max_states: int | None, guided_share: float, seed: int
) -> list[StateRef]:
    """Returns the states to continue from, by rollout and step: a pure function of the rollouts and the seed.

    Rollouts are told apart by their seeds, which stay when a digest upstream changes every id. Left out:
    continuations from a later state, rollouts without a reward (infrastructure failed), and all but one of
    the states with equal task, context and tokens. The cap is reached by going round the tasks, so that
    every task gets its turn. At most `guided_share` of the states are guided; bare states fill what guided
    ones lack, and under a cap guided states fill what bare ones lack.
    """
    drawn = {rollout.rollout_id: rollout.seed for rollout in rollouts}
    bare, guided = (
        _rounds([rollout for rollout in rollouts if rollout.guided is own], drawn, seed)
        for own in (False, True)
    )
    num_bare, num_guided = _shares(len(bare), len(guided), max_states, guided_share)
    return sorted(bare[:num_bare] + guided[:num_guided], key=lambda s: (drawn[s.rollout_id], s))


def _shares(num_bare: int, num_guided: int, cap: int | None, share: float) -> tuple[int, int]:
    if cap is None:
        guided = num_guided if share >= 1 else min(num_guided, round(num_bare * share / (1 - share)))
        return (0 if share >= 1 else num_bare), guided
    guided = min(num_guided, round(cap * share))
    bare = min(num_bare, cap - guided)
    if share > 0:
        guided = min(num_guided, cap - bare)
    return bare, guided


def _rounds(rollouts: Sequence[Rollout], drawn: Mapping[str, int], seed: int) -> list[StateRef]:
    """Returns all candidate states so that any first n of them are spread over the tasks."""
    by_task: dict[str, dict[str, StateRef]] = {}
    for rollout in sorted(rollouts, key=lambda r: (digest(seed, r.seed), r.rollout_id)):
        if rollout.start_step_index > 0 or rollout.reward is None or rollout.env_status != "ok":
            continue
        for index in candidate_steps(rollout):
            state = StateRef(rollout.rollout_id, index, rollout.context)
            by_task.setdefault(rollout.task_id, {}).setdefault(digest(state_tokens(rollout, index)), state)
    ordered: list[tuple[float, int, StateRef]] = []
    for place, task_id in enumerate(sorted(by_task, key=lambda task: digest(seed, task))):
        states = sorted(
            by_task[task_id].values(), key=lambda s: (digest(seed, drawn[s.rollout_id], s.step_index), s)
        )
        starts = [state for state in states if state.step_index == 0]
        later = [state for state in states if state.step_index > 0]
        in_turn, at_last = ([*starts, *later], []) if place % START_EVERY == 0 else (later, starts)
        ordered += [(float(turn), place, state) for turn, state in enumerate(in_turn)]
        ordered += [(math.inf, place, state) for state in at_last]
    return [state for _, _, state in sorted(ordered, key=lambda entry: entry[:2])]
