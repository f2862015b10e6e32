"""What an audit of a critic has measured: states with K fresh continuations each, as arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np


@dataclass(frozen=True, slots=True)
class AuditRollout:
    """A rollout of the audited tasks: its outcome serves the per-task rate, its steps the drawings.

    Attributes:
        rollout_id: its id.
        task_id: its task.
        context: bare or guided.
        reward: None if it could not be graded.
        level: of the task.
        split: of the task.
        values: [T] calibrated values of all its states; () if it is not drawn.
        texts: [T] steps in words.
        statuses: [T] verifier status of each step.
        messages: [T] the verifier's message.
        cluster: what is resampled; its task where this is empty.
    """

    rollout_id: str
    task_id: str
    context: str
    reward: float | None
    level: int = 0
    split: str = ""
    values: tuple[float, ...] = ()
    texts: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class AuditData:
    """Audited states, one entry each in every array [N].

    Attributes:
        rollout_id: rollout the state lies in.
        step_index: the state before this step.
        context: bare or guided.
        task_id: its task.
        cluster: what is resampled (phone: the company).
        level: of the task.
        split: of the task.
        position: u in [0, 1], tokens so far over the budget.
        p: calibrated value, in (0, 1).
        k: successes among the continuations.
        K: continuations that were graded, >= 2.
        v_star: the solver's exact V*, NaN where unknown.
        rollouts: rollouts of the audited tasks, at least those the states lie in.
    """

    rollout_id: np.ndarray
    step_index: np.ndarray
    context: np.ndarray
    task_id: np.ndarray
    cluster: np.ndarray
    level: np.ndarray
    split: np.ndarray
    position: np.ndarray
    p: np.ndarray
    k: np.ndarray
    K: np.ndarray
    v_star: np.ndarray
    rollouts: tuple[AuditRollout, ...] = ()

    def __post_init__(self) -> None:
        lengths = {f.name: len(getattr(self, f.name)) for f in fields(self) if f.name != "rollouts"}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"arrays of unequal lengths: {lengths}")
        if len(self.p) == 0:
            return
        if (self.K < 2).any() or (self.k < 0).any() or (self.k > self.K).any():
            raise ValueError("need 0 <= k <= K and K >= 2 for every audited state; leave the others out")
        if not ((self.p >= 0) & (self.p <= 1)).all():
            raise ValueError("p must be calibrated probabilities in [0, 1]")
        keys = set(
            zip(self.rollout_id.tolist(), self.step_index.tolist(), self.context.tolist(), strict=True)
        )
        if len(keys) != len(self.p):
            raise ValueError(f"{len(self.p)} rows but {len(keys)} states; a state is audited once")

    def __len__(self) -> int:
        return len(self.p)

    @property
    def v_hat(self) -> np.ndarray:
        """[N] k / K: the continuations' estimate of V."""
        return self.k / self.K

    @property
    def noise(self) -> np.ndarray:
        """[N] v = Vhat (1 - Vhat) / (K - 1): unbiased for the variance of Vhat."""
        return self.v_hat * (1 - self.v_hat) / (self.K - 1)

    def where(self, mask: np.ndarray) -> AuditData:
        """Returns the states of a boolean mask [N]; rollouts stay."""
        chosen = {f.name: getattr(self, f.name)[mask] for f in fields(self) if f.name != "rollouts"}
        return replace(self, **chosen)

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns row numbers (i, j) of states s_i and s_{i+1} of one rollout and context, both audited."""
        place = {
            key: row
            for row, key in enumerate(
                zip(self.rollout_id.tolist(), self.context.tolist(), self.step_index.tolist(), strict=True)
            )
        }
        found = [
            (row, place[rollout, context, step + 1])
            for (rollout, context, step), row in place.items()
            if (rollout, context, step + 1) in place
        ]
        both = np.array(found, dtype=np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def groups(self) -> np.ndarray:
        """Returns [N] the number of each state's rollout-in-context, 0-based."""
        numbers: dict[tuple[str, str], int] = {}
        keys = zip(self.rollout_id.tolist(), self.context.tolist(), strict=True)
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
