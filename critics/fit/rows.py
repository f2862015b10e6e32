"""Labels and rollouts to rows of tokens with targets at their read-outs."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from critics.labels.soft_targets import state_weight
from critics.readouts import error_positions, value_positions
from pipeline.training import TrainingRow
from pipeline.types import Label, Rollout

COLUMNS = ("weight", "targets", "error_weights", "error_targets")


def critic_rows(
    rollouts: Sequence[Rollout], labels: Sequence[Label], *, continuations: Sequence[Rollout] = ()
) -> list[TrainingRow]:
    """Returns one row per labelled rollout, in the order of the rollouts, then of the graded continuations.

    Columns: `weight` (w of each labelled state, divided by the number of its task's rollouts of attempt 0,
    or of its task's graded continuations) and `targets` at value read-outs; `error_weights` and
    `error_targets` (0 ok, 1 wrong; `unknown` has none) at step ends, where either class has half of the
    weight. Divide by the update's totals with `normalised` before training.

    Tasks share alike in what was planned. They cannot in what came out: how many states there are, and
    whether a second attempt was made, depends on the outcomes that label them, so weights that sum to 1 per
    task would pull V(s_0) towards failures that end early. How many states of a task were continued depends
    on how its rollouts went, not on how the continuations did, so these share their task's weight, and so
    do those that ended at once, without a state of their own: where many do, a task is harder than it looks.

    Raises:
        ValueError: a label of no rollout, step or context.
    """
    by_rollout: dict[str, list[Label]] = defaultdict(list)
    for label in labels:
        by_rollout[label.rollout_id].append(label)
    if strangers := by_rollout.keys() - {r.rollout_id for r in (*rollouts, *continuations)}:
        raise ValueError(f"labels of {len(strangers)} rollouts that were not given, e.g. {min(strangers)}")
    rollouts = [rollout for rollout in rollouts if rollout.rollout_id in by_rollout]
    first_attempts: dict[str, int] = defaultdict(int)
    for rollout in rollouts:
        first_attempts[rollout.task_id] += rollout.attempt == 0
    continued = Counter(rollout.task_id for rollout in continuations)
    continuations = [rollout for rollout in continuations if rollout.rollout_id in by_rollout]
    sharing = [max(1, first_attempts[r.task_id]) for r in rollouts]
    sharing += [continued[r.task_id] for r in continuations]
    rollouts = [*rollouts, *continuations]
    verdicts = [[step.verifier_status for step in rollout.steps] for rollout in rollouts]
    class_sizes = [sum(row.count(status) for row in verdicts) for status in ("ok", "wrong")]
    # One class alone teaches the head nothing but a constant, so it gets no weight.
    class_weights = [len(first_attempts) / 2 / size if all(class_sizes) else 0.0 for size in class_sizes]
    rows = []
    for rollout, statuses, shared_by in zip(rollouts, verdicts, sharing, strict=True):
        columns = {name: np.zeros(len(rollout.token_ids), dtype=np.float32) for name in COLUMNS}
        at = value_positions(rollout)
        for label in by_rollout[rollout.rollout_id]:
            place = label.step_index - rollout.start_step_index
            if label.context != rollout.context or not 0 <= place < len(at):
                raise ValueError(
                    f"label {label.rollout_id}[{label.step_index}] ({label.context}) fits no step"
                )
            columns["weight"][at[place]] = state_weight(label.weight) / shared_by
            columns["targets"][at[place]] = label.target
        for position, status in zip(error_positions(rollout), statuses, strict=True):
            if status != "unknown":
                columns["error_weights"][position] = class_weights[status == "wrong"]
                columns["error_targets"][position] = status == "wrong"
        rows.append(TrainingRow(np.array(rollout.token_ids, dtype=np.int32), columns))
    return rows


def num_states(row: TrainingRow) -> int:
    """Returns the number of labelled states of a row."""
    return int(np.count_nonzero(row.columns["weight"]))


def normalised(rows: Sequence[TrainingRow]) -> list[TrainingRow]:
    """Returns one update's rows, `weight` and `error_weights` each divided by its total over the update."""
    totals = {
        name: sum(float(row.columns[name].sum()) for row in rows) for name in ("weight", "error_weights")
    }
    if totals["weight"] <= 0:
        raise ValueError(f"{len(rows)} rows without a labelled state make no update")
    scaled = []
    for row in rows:
        columns = dict(row.columns)
        for name, total in totals.items():
            columns[name] = (columns[name] / total).astype(np.float32) if total > 0 else columns[name]
        scaled.append(TrainingRow(row.token_ids, columns))
    return scaled
