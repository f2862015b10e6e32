"""An iteration of the actor as its tables hold it: all that the losses of its updates are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from pipeline.artifacts.commit import Shards
from pipeline.credit.options import Aggregation
from pipeline.credit.updates import BaselineSets, Update
from pipeline.tables import (
    looks_table,
    rollouts_from,
    rollouts_table,
    steps_table,
    updates_table,
    values_from,
    values_table,
)
from pipeline.training.policy_update import Logprobs
from pipeline.types import Rollout


@dataclass(frozen=True, slots=True)
class Committed:
    """An iteration that an earlier start committed; `values` is None without a critic."""

    rollouts: list[Rollout]
    checked: list[Rollout]  # continuations, which tell values
    values: dict[str, np.ndarray] | None  # rollout_id -> [T]
    logprobs: dict[str, Logprobs]  # old_logprobs and ref_logprobs, as far as its updates need them

    @classmethod
    def of(cls, shards: Shards, number: int, *, policy_digest: str, whose_values: str) -> Self | None:
        """Returns an iteration if it is committed, these weights sampled it and this critic scored it."""
        if not shards.is_committed(number):
            return None
        rollouts, steps, values, updates = (
            shards.read(number, name) for name in ("rollouts", "steps", "values", "updates")
        )
        played = rollouts_from(rollouts, steps)
        if any(rollout.policy_digest != policy_digest for rollout in played):
            return None
        if set(values.column("critic").to_pylist()) - {whose_values}:
            return None
        logprobs = {
            name: {
                row["rollout_id"]: np.array(row[name], np.float32)
                for row in updates.to_pylist()
                if row[name] is not None
            }
            for name in ("old_logprobs", "ref_logprobs")
        }
        return cls(
            [r for r in played if r.kind != "continuation"],
            [r for r in played if r.kind == "continuation"],
            values_from(values) if whose_values else None,
            {name: of for name, of in logprobs.items() if of},
        )


def iteration_tables(
    batch: BaselineSets,
    checked: Sequence[Rollout],
    looks: Sequence[Rollout],
    updates: Sequence[Update],
    logprobs: Mapping[str, Logprobs],
    *,
    whose_values: str,
    num_updates: int,
    aggregation: Aggregation,
) -> dict[str, pa.Table]:
    """Returns an iteration's tables; `num_updates` were taken before, the rest is as in `Committed`."""
    contexts = {rollout.rollout_id: rollout.context for rollout in batch.rollouts}
    made = [update for update in updates if update.rollouts]
    old, ref = (logprobs.get(name, {}) for name in ("old_logprobs", "ref_logprobs"))
    return {
        "rollouts": rollouts_table([*batch.rollouts, *checked]),
        "steps": steps_table([*batch.rollouts, *checked]),
        "looks": looks_table(looks),
        "values": values_table(
            [
                (rollout_id, step_index, contexts[rollout_id], whose_values, float(value))
                for rollout_id, steps in (batch.values or {}).items()
                for step_index, value in enumerate(steps)
            ]
        ),
        "updates": updates_table(
            [
                (r.rollout_id, number, weight, old.get(r.rollout_id), ref.get(r.rollout_id))
                for number, update in enumerate(made, num_updates + 1)
                for r, weight in zip(update.rollouts, update.token_weights(aggregation), strict=True)
            ]
        ),
    }
