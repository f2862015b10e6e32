"""What is known of the value of step states: counts, outcomes and soft targets.

The default target is another one: `outcome_dense`, y = R at every state, which needs no continuations.
`named_targets.retarget` puts it in place of the soft targets that are made here.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from critics.labels.named_targets import OUTCOME_STEPS
from critics.labels.recovery import StateFeatures, fit_recovery
from pipeline.types import Label, Rollout, StateRef

Number = TypeVar("Number", float, np.ndarray)
Granularity = Literal["binary", "step", "detailed"]
UNNAMED = "unnamed"
"""The code of a wrong step for which the verifier names none."""


def label_counts(label: Label) -> tuple[float, int]:
    """Returns (k, n): sum of rewards and samples of a state, its own outcome included.

    A graded reward is a fraction of a success; the cross-entropy that is fitted to k/n takes it as it comes.
    """
    return label.num_success + (label.outcome or 0.0), label.num_continuations + (label.outcome is not None)


def state_weight(num_effective: Number) -> Number:
    """Returns w = n_eff / (n_eff + 2): what another sample of the same state is worth falls."""
    return num_effective / (num_effective + 2.0)


def build_labels(
    rollouts: Sequence[Rollout],
    continuations_by_state: Mapping[StateRef, Sequence[Rollout]],
    *,
    kappa: float,
    label_policy_digest: str,
    seed: int,
    granularity: Granularity = "detailed",
) -> tuple[list[Label], dict[str, Any]]:
    """Returns one label per known state, in the rollouts' order, and the recovery model's report.

    y = (k + kappa m) / (n + kappa), n_eff = n + kappa; an own outcome R adds 1 to n_eff and has a share of
    y beside this (`soft_target`). Sources of one state are merged into one row: fresh continuations of the
    target policy; the rollout's own outcome at steps 0, 1, 2, 4, 8 (in the context it was sampled in, so a
    guided rollout never labels a bare state; only if the target policy sampled it); and, with kappa > 0, the
    recovery model alone right after a counted event.
    `granularity` is what that model sees of located errors: their codes, that there was one, or nothing.

    Raises ValueError for a reward outside [0, 1], or a continuation of another policy, state or context.
    """
    by_id = {rollout.rollout_id: rollout for rollout in rollouts if rollout.start_step_index == 0}
    counts = _continuation_counts(by_id, continuations_by_state, label_policy_digest)
    outcomes = _outcomes(by_id.values(), label_policy_digest)
    features_of = recovery_features(by_id, granularity)
    place = {rollout_id: i for i, rollout_id in enumerate(by_id)}

    def in_order(states: Iterable[StateRef]) -> list[StateRef]:
        return sorted(states, key=lambda s: (place[s.rollout_id], s.step_index))

    bare = [state for state in in_order(counts) if state.context == "bare"]  # feedback may help to recover
    model, report = fit_recovery(
        [features_of(state) for state in bare],
        [counts[state][0] for state in bare],
        [counts[state][1] for state in bare],
        seed=seed,
    )
    known = counts.keys() | outcomes.keys()
    if kappa > 0:
        known |= _after_events(by_id.values(), set(model.codes), granularity)
    states = in_order(known)
    labels = []
    for state, m in zip(states, model([features_of(state) for state in states]), strict=True):
        k, n = counts.get(state, (0, 0))
        outcome = outcomes.get(state)
        target = soft_target(k, n, outcome, kappa * m, kappa)
        weight, source = float(n + (outcome is not None) + kappa), source_of(n, outcome)
        labels.append(
            Label(
                rollout_id=state.rollout_id,
                step_index=state.step_index,
                context=state.context,
                num_continuations=n,
                num_success=k,
                outcome=outcome,
                target=target,
                weight=weight,
                label_source=source,
                label_policy_digest=label_policy_digest,
            )
        )
    return labels, report


def source_of(num_continuations: int, outcome: float | None) -> str:
    """Returns the name of the first source that a soft target has."""
    return "continuation" if num_continuations else "outcome" if outcome is not None else "recovery"


def continued_labels(continuations: Iterable[Rollout], *, label_policy_digest: str) -> list[Label]:
    """Returns a label of each state that graded continuations came to after their first one: how they ended.

    The first one was asked about, and its own label counts them. The others lie here because a continuation
    came by, whatever came after, so its outcome is a fair sample of each in its cluster. Which clusters these
    are follows from the choice of the first states, as it does for their own labels.
    """
    return [
        Label(r.rollout_id, step.step_index, r.context, 0, 0, R, R, 1.0, "outcome", label_policy_digest)
        for r in continuations
        for R in [_graded(r)]
        for step in r.steps[1:]
    ]


def soft_target(k: float, n: int, outcome: float | None, prior: float, kappa: float) -> float:
    """Returns y = S R + (1 - S) (k + prior) / (n + kappa), S the share of an own outcome R, 0 without one.

    k is the sum of n continuations' rewards, prior = kappa m the successes among the pseudo-counts.

    Continuations are asked for, among others, where the rollout's next step was wrong. Counted as one sample
    of n + 1, an own outcome would weigh less exactly there, where it is the likelier a failure, and the
    targets of a state would on average be too high. So w(n_eff) y gives it what it has in a row without
    continuations: w(1 + kappa) / (1 + kappa).

    Example:
        >>> round(soft_target(2, 2, None, 1.0, 2.0), 3), round(soft_target(2, 2, 0.0, 1.0, 2.0), 3)
        (0.75, 0.54)
    """
    continued = (k + prior) / (n + kappa) if n + kappa else 0.0
    if outcome is None:
        return float(continued)
    share = state_weight(1 + kappa) / (1 + kappa) / state_weight(n + 1 + kappa)
    return float(share * outcome + (1 - share) * continued)


def _graded(rollout: Rollout) -> float:
    if rollout.reward is None or not 0 <= rollout.reward <= 1:
        raise ValueError(
            f"rollout {rollout.rollout_id} has reward {rollout.reward}; a value is a chance of success, so "
            "rewards must lie in [0, 1]. Let the environment scale them"
        )
    return float(rollout.reward)


def _continuation_counts(
    by_id: Mapping[str, Rollout], continuations: Mapping[StateRef, Sequence[Rollout]], policy: str
) -> dict[StateRef, tuple[float, int]]:
    """Returns (k, n >= 1) of the states with graded continuations."""
    counts = {}
    for state, samples in continuations.items():
        if by_id[state.rollout_id].context != state.context:
            raise ValueError(f"state {state} is not in the context of its rollout")
        for sample in samples:
            if sample.policy_digest != policy:
                raise ValueError(
                    f"a continuation of {state} is by policy {sample.policy_digest}, not {policy}"
                )
            if sample.context != state.context or sample.start_step_index != state.step_index:
                raise ValueError(
                    f"rollout {sample.rollout_id} starts at step {sample.start_step_index} in "
                    f"{sample.context} context; it cannot label {state}"
                )
        if graded := [_graded(sample) for sample in samples if sample.reward is not None]:
            counts[state] = (sum(graded), len(graded))
    return counts


def _outcomes(rollouts: Iterable[Rollout], policy: str) -> dict[StateRef, float]:
    return {
        StateRef(rollout.rollout_id, step.step_index, rollout.context): _graded(rollout)
        for rollout in rollouts
        if rollout.reward is not None and rollout.policy_digest == policy
        for step in rollout.steps
        if step.step_index in OUTCOME_STEPS
    }


def _seen_code(code: str, granularity: Granularity) -> str:
    return {"binary": "", "step": "wrong"}.get(granularity, code or UNNAMED)


def _after_events(rollouts: Iterable[Rollout], codes: set[str], granularity: Granularity) -> set[StateRef]:
    """Returns the states right after a step with a counted `wrong` code."""
    return {
        StateRef(rollout.rollout_id, following.step_index, rollout.context)
        for rollout in rollouts
        if rollout.reward is not None
        for step, following in zip(rollout.steps, rollout.steps[1:], strict=False)
        if step.verifier_status == "wrong" and _seen_code(step.verifier_code, granularity) in codes
    }


def recovery_features(
    rollouts: Mapping[str, Rollout], granularity: Granularity
) -> Callable[[StateRef], StateFeatures]:
    """Returns state -> what the recovery model sees of it; task rates leave the state's own rollout out."""
    totals: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for rollout in rollouts.values():
        if rollout.reward is not None:
            of_task = totals[rollout.task_id, rollout.context]
            of_task[0] += rollout.reward
            of_task[1] += 1

    def features(state: StateRef) -> StateFeatures:
        rollout = rollouts[state.rollout_id]
        k, n = totals[rollout.task_id, rollout.context]
        if rollout.reward is not None:
            k, n = k - rollout.reward, n - 1
        code = ""
        start = len(rollout.response_token_ids)
        for step in rollout.steps:
            if step.step_index == state.step_index:
                start = step.token_start
                break
            if step.verifier_status == "wrong":
                code = _seen_code(step.verifier_code, granularity)
        used = start / rollout.max_response_tokens
        return StateFeatures(rollout.task_id, code, (k + 1) / (n + 2), used)

    return features
