"""What an audit of a critic has measured: states with K fresh continuations each, as arrays."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from critics.logit import level_shift, logit, sigmoid
from critics.privileged import Counts, counts_before
from pipeline.errors import ArtifactError, ExitCode
from pipeline.ids import seed_of
from pipeline.types import Rollout, StateRef, Task, VerifierStatus

NUM_FOLDS = 5
"""Of clusters, in `level_refitted`."""


@dataclass(frozen=True, slots=True)
class AuditRollout:
    """A rollout of the audited tasks: its outcome serves the per-task rate, its steps the drawings."""

    rollout_id: str
    task_id: str
    context: str
    reward: float | None  # None if it could not be graded
    level: int = 0
    split: str = ""
    values: tuple[float, ...] = ()  # [T] calibrated values of all its states; () if it is not drawn
    texts: tuple[str, ...] = ()  # [T] steps in words
    statuses: tuple[VerifierStatus, ...] = ()  # [T] the verifier's word on each step
    codes: tuple[str, ...] = ()  # [T] event codes behind a `wrong`
    messages: tuple[str, ...] = ()  # [T] the same in words
    cluster: str = ""  # its task where this is empty


@dataclass(frozen=True, slots=True)
class AuditData:
    """Audited states, one entry each in every array [N].

    Rewards are in [0, 1]. Of a graded one that fraction counts as a success and the rest as a failure, in k
    as in every measure of ranking; `squares` keeps the noise of its mean right.
    """

    rollout_id: np.ndarray
    step_index: np.ndarray
    context: np.ndarray
    task_id: np.ndarray
    cluster: np.ndarray  # what is resampled
    level: np.ndarray
    split: np.ndarray
    position: np.ndarray  # u in [0, 1], tokens so far over the budget
    p: np.ndarray  # calibrated value, in (0, 1)
    k: np.ndarray  # sum of the continuations' rewards: successes, where a reward is 0 or 1
    K: np.ndarray  # continuations that were graded, >= 2
    v_star: np.ndarray  # the solver's exact V*, NaN where unknown
    rollouts: tuple[AuditRollout, ...] = ()  # of the audited tasks, at least those the states lie in
    squares: np.ndarray | None = None  # sum of squared rewards; None where these are 0 or 1, so that it is k

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self._columns().items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"arrays of unequal lengths: {lengths}")
        if (self.K < 2).any() or (self.k < 0).any() or (self.k > self.K).any():
            raise ValueError("need 0 <= k <= K and K >= 2 for every audited state; leave the others out")
        if not ((self.p >= 0) & (self.p <= 1)).all():
            raise ValueError("p must be calibrated probabilities in [0, 1]")
        if len(states := set(self._states())) != len(self.p):
            raise ValueError(f"{len(self.p)} rows but {len(states)} states; a state is audited once")

    def __len__(self) -> int:
        return len(self.p)

    @property
    def v_hat(self) -> np.ndarray:
        """[N] k / K: the continuations' estimate of V."""
        return self.k / self.K

    @property
    def noise(self) -> np.ndarray:
        """[N] v = (mean square - Vhat^2) / (K - 1): unbiased for the variance of Vhat.

        Vhat (1 - Vhat) / (K - 1) where rewards are 0 or 1.
        """
        squares = self.k if self.squares is None else self.squares
        return np.maximum(squares / self.K - self.v_hat**2, 0.0) / (self.K - 1)

    @property
    def spread(self) -> np.ndarray:
        """[N] mean square - Vhat^2, the variance of a state's samples: Vhat (1 - Vhat) of successes."""
        mixed = 0.0 if self.squares is None else (self.k - self.squares) / self.K
        return self.v_hat * (1 - self.v_hat) - mixed

    def _columns(self) -> dict[str, np.ndarray]:
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "rollouts"}
        return {name: column for name, column in columns.items() if column is not None}

    def _states(self) -> list[tuple[str, str, int]]:
        return list(
            zip(self.rollout_id.tolist(), self.context.tolist(), self.step_index.tolist(), strict=True)
        )

    def where(self, mask: np.ndarray) -> Self:
        """Returns the states of a boolean mask [N]; rollouts stay."""
        return replace(self, **{name: column[mask] for name, column in self._columns().items()})

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns row numbers (i, j) of states s_i and s_{i+1} of one rollout and context, both audited."""
        place = {state: row for row, state in enumerate(self._states())}
        found = [
            (row, place[rollout, context, step + 1])
            for (rollout, context, step), row in place.items()
            if (rollout, context, step + 1) in place
        ]
        both = np.array(found, dtype=np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def verdicts_before(self) -> list[Counts]:
        """Returns [N] what verdicts say of the steps before each state."""
        counts = {
            r.rollout_id: counts_before([*zip(r.statuses, r.codes, strict=True)]) for r in self.rollouts
        }
        return [counts[r][i] for r, i in zip(self.rollout_id, self.step_index, strict=True)]

    def groups(self) -> np.ndarray:
        """Returns [N] the number of each state's rollout-in-context, 0-based."""
        numbers: dict[tuple[str, str], int] = {}
        keys = (state[:2] for state in self._states())
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def level_refitted(audit: AuditData, seed: int) -> AuditData:
    """Returns the audit with values whose level is that of what was measured in other clusters.

    One shift in log-odds, fitted in `NUM_FOLDS` folds by cluster, so that no state's value has seen its own
    cluster. What a drift watch corrects from outcomes is thus taken off before steps and percentages are
    judged.
    """
    clusters = audit.cluster.tolist()
    folds = {cluster: seed_of("level fold", seed, cluster) % NUM_FOLDS for cluster in set(clusters)}
    fold = np.array([folds[cluster] for cluster in clusters], dtype=np.int64)
    z, p = logit(audit.p), audit.p.copy()
    for number in set(fold.tolist()):
        at, others = fold == number, fold != number
        if others.any():
            p[at] = sigmoid(z[at] + level_shift(z[others], audit.k[others], audit.K[others]))
    return replace(audit, p=p)


def unseen(audit: AuditData, trained_clusters: Collection[str]) -> AuditData:
    """Returns the states of clusters that no training task belongs to."""
    return audit.where(~np.isin(audit.cluster, sorted(trained_clusters)))


def audited_states(
    rollouts: Sequence[Rollout],
    rewards: Mapping[StateRef, Sequence[float]],
    values: Mapping[str, np.ndarray],
    tasks: Mapping[str, Task],
    *,
    solver_values: Mapping[str, Sequence[float]],
) -> AuditData:
    """Returns the audited states of whole rollouts, maybe none: those with 2 graded continuations or more.

    `rewards` are of these; `values` and `solver_values` map rollout_id to [T], exact V* being NaN where
    unknown.
    """
    rows, shown = [], []
    for r in rollouts:
        task = tasks[r.task_id]
        for p, v_star, step in zip(values[r.rollout_id], solver_values[r.rollout_id], r.steps, strict=True):
            own = rewards.get(StateRef(r.rollout_id, step.step_index, r.context), ())
            if len(own) < 2:
                continue
            state = (r.rollout_id, step.step_index, r.context)
            of_task = (task.task_id, task.cluster, task.level, task.split)
            used, squares = step.token_start / r.max_response_tokens, sum(x * x for x in own)
            rows.append((*state, *of_task, used, float(p), sum(own), len(own), v_star, squares))
        shown.append(
            AuditRollout(
                rollout_id=r.rollout_id,
                task_id=r.task_id,
                context=r.context,
                reward=r.reward,
                level=task.level,
                split=task.split,
                values=tuple(float(v) for v in values[r.rollout_id]),
                texts=tuple(step.text for step in r.steps),
                statuses=tuple(step.verifier_status for step in r.steps),
                codes=tuple(step.verifier_code for step in r.steps),
                messages=tuple(step.verifier_message for step in r.steps),
                cluster=task.cluster,
            )
        )
    names = [f.name for f in fields(AuditData) if f.name != "rollouts"]
    columns = {name: np.array([row[place] for row in rows]) for place, name in enumerate(names)}
    if (columns["squares"] == columns["k"]).all():
        del columns["squares"]
    return AuditData(**columns, rollouts=tuple(shown))


def failed_tasks(rollouts: Sequence[Rollout]) -> dict[str, str]:
    """Returns task_id -> how it failed of the tasks of which nothing can be used, and where feedback failed.

    Of an audited task that is a graded bare first draw, or a bare state with two graded continuations if any
    were asked for. One rollout of a task's hundreds is one sample less, not a task less.
    """
    bare = [r for r in rollouts if not r.guided]
    first = [r for r in bare if r.kind == "whole" and r.draw == 0]
    fresh = [r for r in bare if r.kind == "continuation"]
    of_state = Counter(
        (r.task_id, r.parent_rollout_ids[0], r.start_step_index) for r in fresh if r.reward is not None
    )
    lost = {r.task_id for r in first} - {r.task_id for r in first if r.reward is not None}
    lost |= {r.task_id for r in fresh} - {task for (task, *_), number in of_state.items() if number >= 2}
    failed = {r.task_id: f"feedback_{r.feedback_status}" for r in rollouts if r.feedback_failed}
    return failed | dict.fromkeys(lost, "infra_error")


def check_judged(audit: AuditData, trained_clusters: Collection[str], rollouts: Sequence[Rollout]) -> None:
    """Raises ArtifactError, with what was played and what could be used of it, if no state can be judged.

    States of `trained_clusters` are not judged; `rollouts` are everything that was played.
    """
    if len(unseen(audit.where(audit.context == "bare"), trained_clusters)):
        return
    whole = [r for r in rollouts if r.kind == "whole" and not r.guided]
    graded, ids = [r for r in whole if r.reward is not None], {r.rollout_id for r in whole}
    fresh = [r for r in rollouts if r.kind != "whole" and r.parent_rollout_ids[0] in ids]
    idle = bool(graded) and not any(r.steps for r in graded)
    repair = (
        "remove what the environment fails at (env_status in critic_report/shards/rollouts), then make "
        "critic_report SET=--repair, which tries those tasks again"
    )
    raise ArtifactError(
        "the audit has no bare state of an unseen cluster with two graded continuations, so nothing to judge "
        f"the critic by: of {len(whole)} bare rollouts {len(graded)} could be graded and "
        f"{sum(bool(r.steps) for r in whole)} have a step; of {len(fresh)} continuations "
        f"{sum(r.reward is not None for r in fresh)} could be graded. Next: "
        + ("a starting policy that acts (make sft) or more sampling.max_response_tokens" if idle else repair),
        code=ExitCode.QUALITY if idle else ExitCode.FAILED_ITEMS,
    )
