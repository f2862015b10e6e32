"""What is known of the value of step states: counts, outcomes and soft targets; and the loader's checks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn

import numpy as np

from critics.anchors import StateRef
from critics.recovery import StateFeatures, fit_recovery
from critics.rows import state_weight
from critics.rules import OUTCOME_TURNS
from pipeline.errors import ArtifactError, ExitCode
from pipeline.types import Label, Rollout, Task

Granularity = Literal["binary", "step", "detailed"]
UNNAMED = "unnamed"
"""The code of a wrong step whose verifier names none."""


def label_counts(label: Label) -> tuple[int, int]:
    """Returns (k, n): successes and samples of a state, its own outcome included."""
    own = label.outcome is not None
    return label.num_success + (1 if own and label.outcome == 1 else 0), label.num_continuations + own


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
        ValueError: kappa < 0, a graded reward, or a continuation of another policy, state or context.
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
    model, report = fit_recovery(
        [features(state) for state in fitted],
        [counts[state][0] for state in fitted],
        [counts[state][1] for state in fitted],
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
    report |= _audit(labels) | {"kappa": kappa}
    return labels, report


def continued_labels(continuations: Iterable[Rollout], *, label_policy_digest: str) -> list[Label]:
    """Returns a label of each state that graded continuations came to after their first one: how they ended.

    The first one was asked about, and its own label counts them. The others lie here because a continuation
    came by, whatever came after, so its outcome is a fair sample of each in its hidden company. Which
    companies these are follows from the choice of the first states, as it does for their own labels.

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
            outcome=float(_success(rollout)),
            target=float(_success(rollout)),
            weight=1.0,
            label_source="outcome",
            label_policy_digest=label_policy_digest,
        )
        for rollout in continuations
        if rollout.reward is not None
        for step in rollout.steps[1:]
    ]


def soft_target(k: int, n: int, outcome: float | None, prior: float, kappa: float) -> float:
    """Returns y: (k + kappa m) / (n + kappa), beside which an own outcome counts for what it does alone.

    Continuations are asked for, among others, where the rollout's next step was wrong. Counted as one sample
    of n + 1, an own outcome would weigh less exactly there, where it is the likelier a failure, and the
    targets of a state would on average be too high. So w(n_eff) y gives it what it has in a row without
    continuations: w(1 + kappa) / (1 + kappa).

    Args:
        k: successes of continuations.
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


def _success(rollout: Rollout) -> int:
    if rollout.reward not in (0, 1):
        raise ValueError(
            f"rollout {rollout.rollout_id} has reward {rollout.reward}; success counts need "
            "rewards of 0 or 1. Label with the environment's binary reward"
        )
    return int(rollout.reward)


def _continuation_counts(
    by_id: Mapping[str, Rollout], continuations: Mapping[StateRef, Sequence[Rollout]], policy: str
) -> dict[StateRef, tuple[int, int]]:
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
        graded = [_success(sample) for sample in samples if sample.reward is not None]
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
                outcomes[state] = float(_success(rollout))
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


def _audit(labels: Sequence[Label]) -> dict[str, Any]:
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


def check_labels(
    labels: Sequence[Label],
    rollouts: Sequence[Rollout],
    tasks: Sequence[Task],
    *,
    label_policy_digest: str,
    min_base_rate: float = 0.02,
    max_base_rate: float = 0.98,
) -> dict[str, Any]:
    """Returns counts of the labels (as in `build_labels`' report) once they pass; no others are fitted on.

    Raises:
        ArtifactError: no labels; counts with k > n or negative; a target outside [0, 1]; a state that its
            rollout does not have or that stands in another context; an outcome on a bare state of a guided
            rollout, of another policy, or that is not the rollout's reward; a null reward; another or
            several label policies; mixed or truncated sampling; steps that do not tile the loss mask; a
            duplicate row; a task in two splits, or of another split than train; a cluster in a test split and
            another one; with code QUALITY, a base rate outside the bounds.
    """

    def refuse(problem: str) -> NoReturn:
        raise ArtifactError(f"labels: {problem}. The critic would learn from wrong targets; run: make labels")

    if not labels:
        refuse("there are none")
    splits: dict[str, str] = {}
    rows: dict[str, int] = {}
    sides: dict[tuple[str, str], tuple[int, str]] = {}
    for row, task in enumerate(tasks):
        first = rows.setdefault(task.task_id, row)
        if splits.setdefault(task.task_id, task.split) != task.split:
            refuse(
                f"task {task.task_id} is in splits {splits[task.task_id]} and {task.split} (rows {first} and "
                f"{row} of the tasks)"
            )
        unseen = task.split.startswith("test")
        other, its_split = sides.setdefault((task.data_source, task.cluster), (row, task.split))
        if its_split.startswith("test") != unseen:
            refuse(
                f"cluster {task.cluster} is in splits {its_split} and {task.split} (rows {other} and {row} "
                "of the tasks); test splits hold clusters that were never trained on"
            )
    by_id = {rollout.rollout_id: rollout for rollout in rollouts}
    seen: dict[StateRef, int] = {}
    row_of: dict[str, int] = {}
    for row, label in enumerate(labels):
        state = StateRef(label.rollout_id, label.step_index, label.context)
        row_of.setdefault(label.rollout_id, row)
        if (first := seen.setdefault(state, row)) != row:
            refuse(f"{state} has two rows, {first} and {row}")
        if (rollout := by_id.get(label.rollout_id)) is None:
            refuse(f"row {row}: {state} lies in no rollout that was given")
        if label.label_policy_digest != label_policy_digest:
            refuse(
                f"row {row}: {state} is labelled for policy {label.label_policy_digest}, the actor starts "
                f"from {label_policy_digest}"
            )
        if rollout.task_id not in splits:
            refuse(f"row {row}: task {rollout.task_id} of {state} is in no split")
        if splits[rollout.task_id] != "train":
            refuse(
                f"row {row}: task {rollout.task_id} of {state} is of split {splits[rollout.task_id]}, which "
                "critics are audited and actors evaluated on; labels are of train alone"
            )
        for problem in _label_problems(label, rollout):
            refuse(f"row {row}: {state}: {problem}")
    used = [by_id[rollout_id] for rollout_id in row_of]
    for rollout in used:
        for problem in _rollout_problems(rollout, used[0]):
            refuse(f"row {row_of[rollout.rollout_id]}: rollout {rollout.rollout_id}: {problem}")
    audit = _audit(labels)
    rate = audit["base_rate"]
    if rate is None or not min_base_rate <= rate <= max_base_rate:
        raise ArtifactError(
            f"labels: base rate of success {rate} is outside [{min_base_rate}, {max_base_rate}]: with almost "
            "no success, or no failure, there is nothing for a critic to tell apart. Next: a better starting "
            "policy (make sft), or tasks of another level",
            code=ExitCode.QUALITY,
        )
    return audit


def check_outcomes_differ(rollouts: Sequence[Rollout]) -> None:
    """Raises ArtifactError, code QUALITY, if all graded rollouts succeeded or all failed.

    What `check_labels` would say after the continuations, while nothing has been paid for them.
    """
    rewards = {rollout.reward for rollout in rollouts if rollout.reward is not None}
    if len(rewards) < 2:
        word = "could be graded" if not rewards else "failed" if rewards == {1.0} else "succeeded"
        raise ArtifactError(
            f"labels: none of {len(rollouts)} rollouts {word}: there is nothing for a critic to tell apart. "
            "Next: a better starting policy (make sft), or tasks of another level",
            code=ExitCode.QUALITY,
        )


def _label_problems(label: Label, rollout: Rollout) -> list[str]:
    problems = []
    if not 0 <= label.num_success <= label.num_continuations:
        problems.append(f"{label.num_success} successes of {label.num_continuations} continuations")
    if not 0 <= label.target <= 1:  # also catches NaN
        problems.append(f"target {label.target} is outside [0, 1]")
    if not label.weight > 0:
        problems.append(f"weight {label.weight} is not positive")
    if not any(step.step_index == label.step_index for step in rollout.steps):
        problems.append(f"the rollout has no step {label.step_index}")
    if rollout.reward is None:
        problems.append("the rollout could not be graded (null reward)")
    if label.outcome is not None:
        if label.context == "bare" and rollout.guided:
            problems.append("a guided rollout's outcome on a bare state")
        if rollout.policy_digest != label.label_policy_digest:
            problems.append(
                f"the outcome is of policy {rollout.policy_digest}, not {label.label_policy_digest}"
            )
        if label.outcome != rollout.reward:
            problems.append(f"outcome {label.outcome} is not the rollout's reward {rollout.reward}")
        if label.step_index not in OUTCOME_TURNS:
            problems.append("an own outcome where the state may have been chosen by it")
    if label.context != rollout.context:
        problems.append(f"the rollout's context is {rollout.context}")
    return problems


def check_continuations(continuations: Sequence[Rollout], first: Rollout) -> None:
    """Raises ArtifactError, naming the rollout, unless continuations were sampled as the rollouts were.

    Args:
        continuations: that label the states that they came to.
        first: one of the rollouts.
    """
    for row, continuation in enumerate(continuations):
        for problem in _rollout_problems(continuation, first):
            raise ArtifactError(
                f"continuations: row {row}: rollout {continuation.rollout_id}: {problem}. Next: make labels "
                "SET=--fresh from these rollouts"
            )


def _rollout_problems(rollout: Rollout, first: Rollout) -> list[str]:
    problems = []
    sampling = (rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_response_tokens)
    expected = (first.temperature, first.top_p, first.top_k, first.max_response_tokens)
    if sampling != expected:
        problems.append(
            f"sampled with (temperature, top_p, top_k, budget) {sampling}, others with {expected}"
        )
    if rollout.top_p != 1 or rollout.top_k != -1:
        problems.append(f"truncated sampling: top_p {rollout.top_p}, top_k {rollout.top_k}")
    covered = np.zeros(len(rollout.response_token_ids), dtype=np.int64)
    for step in rollout.steps:
        covered[step.token_start : step.token_end] += 1
    if not np.array_equal(covered, np.asarray(rollout.loss_mask)):
        problems.append("its steps do not tile the tokens with loss_mask 1")
    return problems
