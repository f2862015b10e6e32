"""What is known of the value of step states: counts, outcomes and soft targets."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from critics.fit.rows import state_weight
from critics.labels.named_targets import OUTCOME_TURNS
from critics.labels.recovery import StateFeatures, fit_recovery
from pipeline.types import Label, Rollout, StateRef

Granularity = Literal["binary", "step", "detailed"]
UNNAMED = "unnamed"
"""The code of a wrong step for which the verifier names none."""


def label_counts(label: Label) -> tuple[float, int]:
    """Returns (k, n): sum of rewards and samples of a state, its own outcome included.

    A graded reward is a fraction of a success; the cross-entropy that is fitted to k/n takes it as it comes.
    """
    return label.num_success + (label.outcome or 0.0), label.num_continuations + (label.outcome is not None)


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

    y = (k + kappa m) / (n + kappa), n_eff = n + kappa. Sources of one state are merged into one row
    (`soft_target`): fresh continuations; the rollout's own outcome at turns 0, 1, 2, 4, 8 (in the context it
    was sampled in, so a guided rollout never labels a bare state; only if the target policy sampled it); and,
    with kappa > 0, the recovery model alone right after a counted event.

    Args:
        rollouts: whole rollouts (no continuations), with verdicts on their steps.
        continuations_by_state: graded episodes of the target policy from each state, in the state's context;
            those without a reward are left out.
        kappa: pseudo-counts given to the recovery model, >= 0.
        label_policy_digest: the target policy.
        seed: of the recovery model's folds and intervals.
        granularity: what it sees of located errors: their codes, that there was one, or nothing.

    Raises:
        ValueError: kappa < 0, a reward outside [0, 1], or a continuation of another policy, state or context.
    """
    if kappa < 0:
        raise ValueError(f"kappa = {kappa}; must be >= 0")
    by_id = {rollout.rollout_id: rollout for rollout in rollouts if rollout.start_step_index == 0}
    counts = _continuation_counts(by_id, continuations_by_state, label_policy_digest)
    outcomes = _outcomes(by_id.values(), label_policy_digest)
    features = _FeatureMaker(by_id.values(), granularity)
    place = {rollout_id: i for i, rollout_id in enumerate(by_id)}

    def in_order(states: Iterable[StateRef]) -> list[StateRef]:
        return sorted(states, key=lambda s: (place[s.rollout_id], s.step_index))

    fitted = [state for state in in_order(counts) if counts[state][1] > 0]
    bare = [state for state in fitted if state.context == "bare"]  # feedback may help to recover
    model, report = fit_recovery(
        [features(state) for state in bare],
        [counts[state][0] for state in bare],
        [counts[state][1] for state in bare],
        seed=seed,
    )
    known = set(fitted) | outcomes.keys()
    recovery = _after_events(by_id.values(), set(model.codes), granularity) - known if kappa > 0 else set()
    states = in_order(known | recovery)
    labels = []
    for state, m in zip(states, model([features(state) for state in states]), strict=True):
        k, n = counts.get(state, (0, 0))
        outcome = outcomes.get(state)
        source = "continuation" if n else "outcome" if outcome is not None else "recovery"
        labels.append(
            Label(
                rollout_id=state.rollout_id,
                step_index=state.step_index,
                context=state.context,
                num_continuations=n,
                num_success=k,
                outcome=outcome,
                target=soft_target(k, n, outcome, kappa * m, kappa),
                weight=float(n + (outcome is not None) + kappa),
                label_source=source,
                label_policy_digest=label_policy_digest,
            )
        )
    report |= kinds_of(labels) | {"kappa": kappa}
    return labels, report


def continued_labels(continuations: Iterable[Rollout], *, label_policy_digest: str) -> list[Label]:
    """Returns a label of each state that graded continuations came to after their first one: how they ended.

    The first one was asked about, and its own label counts them. The others lie here because a continuation
    came by, whatever came after, so its outcome is a fair sample of each in its cluster. Which
    clusters these are follows from the choice of the first states, as it does for their own labels.

    Args:
        continuations: of the target policy, with their own steps alone.
        label_policy_digest: the target policy.
    """
    return [
        Label(
            rollout_id=rollout.rollout_id,
            step_index=step.step_index,
            context=rollout.context,
            num_continuations=0,
            num_success=0,
            outcome=_graded(rollout),
            target=_graded(rollout),
            weight=1.0,
            label_source="outcome",
            label_policy_digest=label_policy_digest,
        )
        for rollout in continuations
        if rollout.reward is not None
        for step in rollout.steps[1:]
    ]


def soft_target(k: float, n: int, outcome: float | None, prior: float, kappa: float) -> float:
    """Returns y: (k + kappa m) / (n + kappa), beside which an own outcome counts for what it does alone.

    Continuations are asked for, among others, where the rollout's next step was wrong. Counted as one sample
    of n + 1, an own outcome would weigh less exactly there, where it is the likelier a failure, and the
    targets of a state would on average be too high. So w(n_eff) y gives it what it has in a row without
    continuations: w(1 + kappa) / (1 + kappa).

    Args:
        k: sum of the continuations' rewards.
        n: continuations; at least one of `n`, `outcome` and `kappa` is there.
        outcome: R, or None where an own outcome does not label.
        prior: kappa m, successes among the pseudo-counts.
        kappa: pseudo-counts.

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
    counts = {}
    for state, samples in continuations.items():
        if state.rollout_id not in by_id:
            raise ValueError(f"state {state} lies in no rollout that was given")
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
        graded = [_graded(sample) for sample in samples if sample.reward is not None]
        counts[state] = (sum(graded), len(graded))
    return counts


def _outcomes(rollouts: Any, policy: str) -> dict[StateRef, float]:
    outcomes = {}
    for rollout in rollouts:
        if rollout.reward is None or rollout.policy_digest != policy:
            continue
        for step in rollout.steps:
            if step.step_index in OUTCOME_TURNS:
                state = StateRef(rollout.rollout_id, step.step_index, rollout.context)
                outcomes[state] = _graded(rollout)
    return outcomes


def _seen_code(code: str, granularity: Granularity) -> str:
    return {"binary": "", "step": "wrong"}.get(granularity, code)


def _after_events(rollouts: Any, codes: set[str], granularity: Granularity) -> set[StateRef]:
    """Returns the states right after a step with a counted `wrong` code."""
    states = set()
    for rollout in rollouts:
        if rollout.reward is None:
            continue
        for step, following in zip(rollout.steps, rollout.steps[1:], strict=False):
            code = _seen_code(step.verifier_code or UNNAMED, granularity)
            if step.verifier_status == "wrong" and code in codes:
                states.add(StateRef(rollout.rollout_id, following.step_index, rollout.context))
    return states


class _FeatureMaker:
    """State -> what the recovery model sees of it; task rates leave the state's own rollout out."""

    def __init__(self, rollouts: Any, granularity: Granularity) -> None:
        self._granularity = granularity
        self._rollouts = {rollout.rollout_id: rollout for rollout in rollouts}
        self._totals: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for rollout in self._rollouts.values():
            if rollout.reward is not None:
                totals = self._totals[rollout.task_id, rollout.context]
                totals[0] += rollout.reward
                totals[1] += 1

    def __call__(self, state: StateRef) -> StateFeatures:
        rollout = self._rollouts[state.rollout_id]
        k, n = self._totals[rollout.task_id, rollout.context]
        if rollout.reward is not None:
            k, n = k - rollout.reward, n - 1
        code = ""
        start = len(rollout.response_token_ids)
        for step in rollout.steps:
            if step.step_index == state.step_index:
                start = step.token_start
                break
            if step.verifier_status == "wrong":
                code = _seen_code(step.verifier_code or UNNAMED, self._granularity)
        used = min(1.0, start / max(1, rollout.max_response_tokens))
        return StateFeatures(rollout.task_id, code, (k + 1) / (n + 2), used)


def kinds_of(labels: Sequence[Label]) -> dict[str, Any]:
    """Returns counts of what kinds of labels there are."""
    pairs = [label_counts(label) for label in labels]
    total = sum(n for _, n in pairs)
    sources = Counter(label.label_source for label in labels)
    return {
        "num_labels": len(labels),
        "num_by_source": dict(sorted(sources.items())),
        "num_guided": sum(label.context == "guided" for label in labels),
        "num_samples": total,
        "base_rate": sum(k for k, _ in pairs) / total if total else None,
        "mean_target": float(np.mean([label.target for label in labels])) if labels else None,
    }
