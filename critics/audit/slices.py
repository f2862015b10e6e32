"""A critic's quality by part of the audit: level, position, length, split, context."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from critics.audit.data import AuditData
from critics.audit.discrimination import discrimination
from critics.audit.measures import errors, steps
from pipeline.statistics import ClusterBootstrap

NUM_POSITIONS = 5
LONG_ROLLOUT = 8
SLICE_KINDS = ("level", "position", "length", "split", "context")
SLICE_METRICS = ("ev", "ev_within", "rho_a", "bias", "rmse", "auroc")


def slices(
    audit: AuditData, *, kinds: Sequence[str] = SLICE_KINDS, num_resamples: int = 500, seed: int = 0
) -> list[dict[str, Any]]:
    """Returns one row per slice: kind, name, num_states, num_tasks, and an Interval of `SLICE_METRICS`."""
    keys: dict[str, np.ndarray] = {
        "level": audit.level,
        "position": position_bins(audit),
        "length": length_bins(audit),
        "split": audit.split,
        "context": audit.context,
    }
    rows = []
    for kind in kinds:
        for name in sorted(set(keys[kind].tolist())):
            part = audit.where(keys[kind] == name)
            boot = ClusterBootstrap(part.cluster, num_resamples, seed)
            found = errors(part, boot) | steps(part, boot) | discrimination(part, boot)
            row = {
                "kind": kind,
                "name": f"{name * 20}-{name * 20 + 20} %" if kind == "position" else str(name),
                "num_states": len(part),
                "num_tasks": len(set(part.task_id.tolist())),
            }
            rows.append(row | {metric: found[metric] for metric in SLICE_METRICS})
    return rows


def position_bins(audit: AuditData) -> np.ndarray:
    """Returns [N] the fifth of the budget that a state lies in, 0-based."""
    return np.minimum((audit.position * NUM_POSITIONS).astype(np.int64), NUM_POSITIONS - 1)


def length_bins(audit: AuditData) -> np.ndarray:
    """Returns [N] the audited states of each state's rollout, in words; long rollouts share a name."""
    groups = audit.groups()
    names = [
        f"{n} states" if n < LONG_ROLLOUT else f"{LONG_ROLLOUT} states or more"
        for n in np.bincount(groups)[groups]
    ]
    return np.array(names, dtype=str)
