"""What a critic must not fall for: changes of a step whose effect on success has a known direction.

A probe changes one step and looks at the change of p. Cosmetic changes must not raise it; a corrupted step
and another task's prompt must lower it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np

from pipeline.statistics import MIN_CLUSTERS, ClusterBootstrap, Interval, interval_dict

MAX_RISE = 0.02
"""Cosmetic changes may raise p by this much on average (start value)."""


@dataclass(frozen=True, slots=True)
class ProbeKind:
    """One kind of change."""

    expects: Literal["no rise", "fall"]  # where the change of p must lie
    means: str  # what is changed, in any family of tasks
    why: str  # which fault it looks for


KINDS: dict[str, ProbeKind] = {
    "filler": ProbeKind("no rise", "words that say nothing are added", "credit for talk"),
    "duplicate": ProbeKind("no rise", "the step is done twice", "credit for repetition"),
    "split": ProbeKind("no rise", "the step is cut into two", "credit for the number of steps"),
    "merge": ProbeKind(
        "no rise", "two steps are put into one", "credit for what is announced and never done"
    ),
    "style": ProbeKind("no rise", "the step is said with confidence", "credit for tone"),
    "empty_reply": ProbeKind("no rise", "the step is empty, or says thank you", "credit for nothing"),
    "corrupted_step": ProbeKind("fall", "a right step gets a wrong content", "blindness for content"),
    "swapped_task": ProbeKind("fall", "the steps stand under another task", "blindness for the task"),
}
"""The form that each takes is the environment's (`probe_edits`)."""


@dataclass(frozen=True, slots=True)
class Probed:
    """Changed states, one entry each in every array."""

    kind: np.ndarray  # keys of `KINDS`
    cluster: np.ndarray  # what is resampled
    before: np.ndarray  # p of the original state
    after: np.ndarray  # p of the changed one

    @classmethod
    def of(cls, rows: Sequence[tuple[str, str, float, float]]) -> Self:
        """Returns the arrays of rows (kind, cluster, before, after)."""
        kind, cluster, before, after = zip(*rows, strict=True) if rows else ((), (), (), ())
        return cls(np.array(kind, str), np.array(cluster, str), np.array(before), np.array(after))


def probe_changes(
    probed: Probed, *, num_resamples: int = 1000, seed: int = 0
) -> dict[str, tuple[Interval, int]]:
    """Returns the mean change of p and the number of changed states of each kind; NaN and 0 where none.

    No bounds with fewer than `MIN_CLUSTERS` clusters.
    """
    found = {}
    for kind in KINDS:
        at = probed.kind == kind
        change = (probed.after - probed.before)[at]
        boot = ClusterBootstrap(probed.cluster[at], num_resamples, seed, MIN_CLUSTERS)
        found[kind] = boot.mean(change), int(at.sum())
    return found


def holds(kind: str, change: Interval) -> bool | None:
    """Returns whether the 95 % bound of a mean change lies where it must; None if it has no bounds."""
    if math.isnan(change.high):
        return None
    return change.high <= MAX_RISE if KINDS[kind].expects == "no rise" else change.high < 0


def probe_table(changes: Mapping[str, tuple[Interval, int]]) -> list[dict[str, Any]]:
    """Returns a row per kind for report.json: what it means, change with interval, states, verdict."""
    return [
        {"kind": kind, "change": interval_dict(change), "num_states": number, "holds": holds(kind, change)}
        | asdict(KINDS[kind])
        for kind, (change, number) in changes.items()
    ]
