"""What a page knows of all rollouts of a stage: a few bytes of each, to filter, sort and count by."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.text import visible
from pipeline.view.parts import Parts, version_of

TEXTS = ("kind", "task_id", "group_id", "finish_reason", "env_status", "policy_digest")
NUMBERS = ("iteration", "attempt", "draw", "temperature")
LIGHT = ("rollout_id", *TEXTS, *NUMBERS, "guided", "reward", "start_step_index", "parent_rollout_ids")
OUTCOMES = ("success", "partial", "failure", "not graded")
VERDICTS = ("a wrong step", "no wrong step", "no verdicts")


class Children:
    """Rows of another table by the rollout that they belong to."""

    def __init__(self, ids: pa.Array, of: pa.ChunkedArray) -> None:
        self.codes = _places(of.combine_chunks(), ids)
        self.order = np.argsort(self.codes, kind="stable")
        self.starts = np.searchsorted(self.codes[self.order], np.arange(len(ids) + 1))

    def rows(self, row: int) -> np.ndarray:
        """Returns the rows of a rollout, in their order."""
        return self.order[self.starts[row] : self.starts[row + 1]]


def _places(of: pa.Array, ids: pa.Array) -> np.ndarray:
    """Returns the place of each element among the ids, -1 for none; equal neighbours are looked up once."""
    if not len(of):
        return np.zeros(0, np.int64)
    is_new = pc.not_equal(of[1:], of[:-1]).to_numpy(zero_copy_only=False).astype(bool)
    starts = np.flatnonzero(np.concatenate([[True], is_new]))
    places = pc.index_in(of.take(pa.array(starts)), value_set=ids).fill_null(-1)
    return np.repeat(places.to_numpy().astype(np.int64), np.diff(np.append(starts, len(of))))


@dataclass(frozen=True)
class Tasks:
    """What rollouts do not say of their tasks."""

    ids: pa.Array
    splits: pa.Array
    levels: pa.Array
    texts: pa.Array  # what opens the episode, the beginning of it

    @classmethod
    def of(cls, tables: Mapping[str, Parts]) -> "Tasks":
        """Returns the tasks of the stage `tasks`; none if it has no table yet."""
        if "tasks" not in tables:
            none = pa.nulls(0, pa.string())
            return cls(none, none, pa.nulls(0, pa.int32()), none)
        table = tables["tasks"].columns(["task_id", "split", "level", "prompt"])
        prompts = table.column("prompt").combine_chunks()
        texts, ends = (
            prompts.flatten().field("content"),
            prompts.offsets.to_numpy()[1:] - prompts.offsets[0].as_py(),
        )
        last = texts.take(pa.array(np.maximum(ends - 1, 0))) if len(texts) else texts
        return cls(
            table.column("task_id").combine_chunks(),
            table.column("split").combine_chunks(),
            table.column("level").combine_chunks(),
            pc.utf8_slice_codeunits(last, 0, 200),
        )


class StageIndex:
    """The rollouts of one stage, by the columns that are light."""

    def __init__(self, stage: str, tables: Mapping[str, Parts], is_complete: bool, tasks: Tasks) -> None:
        self.stage, self.tables, self.is_complete = stage, tables, is_complete
        self.version, self.tasks = version_of(tables), tasks
        self.table = tables["rollouts"].columns(LIGHT)
        self.ids: pa.Array = self.table.column("rollout_id").combine_chunks()

    @property
    def num_rows(self) -> int:
        """How many rollouts there are."""
        return len(self.ids)

    @cached_property
    def task_rows(self) -> np.ndarray:
        """The row of each rollout's task among the tasks, -1 for none."""
        return _places(self.table.column("task_id").combine_chunks(), self.tasks.ids)

    @cached_property
    def steps(self) -> Children:
        """Rows of the steps table."""
        return Children(self.ids, self.tables["steps"].columns(["rollout_id"]).column(0))

    @cached_property
    def values(self) -> tuple[Children, np.ndarray, np.ndarray] | None:
        """Rows of the values table, the step of each and the critic's value; None without such a table."""
        if "values" not in self.tables:
            return None
        table = self.tables["values"].columns(["rollout_id", "step_index", "value"])
        return (
            Children(self.ids, table.column("rollout_id")),
            table.column("step_index").to_numpy(),
            table.column("value").to_numpy(),
        )

    @cached_property
    def parents(self) -> pa.Array:
        """The first parent of each rollout, an empty text for none."""
        lists = self.table.column("parent_rollout_ids").combine_chunks()
        flat, lengths = lists.flatten(), lists.value_lengths().to_numpy()
        if not len(flat):
            return pa.repeat("", len(lists))
        firsts = np.cumsum(lengths) - lengths
        taken = flat.take(pa.array(np.minimum(firsts, len(flat) - 1)))
        return pc.if_else(pc.greater(lists.value_lengths(), 0), taken, "")

    def row_of(self, rollout_id: str) -> int | None:
        """Returns the row of a rollout by its id or the beginning of it; None if none or several have it."""
        exact = pc.index(self.ids, rollout_id).as_py()
        if exact >= 0:
            return int(exact)
        begun = np.flatnonzero(pc.starts_with(self.ids, rollout_id).to_numpy(zero_copy_only=False))
        return int(begun[0]) if len(begun) == 1 and rollout_id else None

    def continued(self, rollout_id: str) -> dict[int, tuple[int, float]]:
        """Returns step -> (number, sum of rewards) of the graded continuations of a rollout in this stage."""
        return self._continued.get(rollout_id, {})

    @cached_property
    def _continued(self) -> dict[str, dict[int, tuple[int, float]]]:
        """What `continued` says of each rollout: all are gathered in one pass."""
        steps, rewards = self._text("start_step_index"), self._text("reward")
        is_one = pc.and_(pc.equal(self._text("kind"), "continuation"), pc.is_valid(rewards))
        every = pa.table({"parent": self.parents, "step": steps, "reward": rewards}).filter(is_one)
        sums = every.group_by(["parent", "step"]).aggregate([("reward", "count"), ("reward", "sum")])
        found: dict[str, dict[int, tuple[int, float]]] = {}
        for row in sums.to_pylist():
            found.setdefault(row["parent"], {})[row["step"]] = row["reward_count"], row["reward_sum"]
        return found

    def with_value(self, low: float, high: float) -> np.ndarray:
        """Returns the rows of rollouts of which some state has a value in [low, high)."""
        if self.values is None:
            return np.zeros(0, np.int64)
        children, _, values = self.values
        rows = np.unique(children.codes[(values >= low) & (values < high)])
        return rows[rows >= 0]

    def briefs(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Returns what a list says of some rollouts in words: their ids, and how their task begins."""
        found = []
        for row in rows:
            task = int(self.task_rows[row])
            names = {name: self.table.column(name)[row].as_py() for name in ("rollout_id", "task_id")}
            found.append({**names, "text": self.tasks.texts[task].as_py() if task >= 0 else ""})
        return found

    def _text(self, name: str) -> pa.Array:
        return self.table.column(name).combine_chunks()

    @cached_property
    def columns(self) -> dict[str, dict[str, Any]]:
        """The columns that a list needs, as the page takes them: `data`, or `values` that `data` numbers."""
        rewards = self._text("reward").to_numpy(zero_copy_only=False).astype(np.float64)  # null is NaN
        # Not of the reward: that of a success may be less than 1 where what it did has a price.
        is_success = pc.equal(self._text("finish_reason"), "success").to_numpy(zero_copy_only=False)
        outcomes = np.select([np.isnan(rewards), is_success, rewards > 0], [3, 0, 1], 2)
        guided = self._text("guided").to_numpy(zero_copy_only=False).astype(np.uint8)
        return {
            "split": _of_task(_coded(self.tasks.splits), self.task_rows),
            "level": _of_task(_coded(self.tasks.levels), self.task_rows),
            "outcome": _column(outcomes, list(OUTCOMES)),
            "guided": _column(guided, ["no", "yes"]),
            "reward": _column(rewards.astype(np.float32)),
            **{name: _column(*_coded(self._text(name))) for name in (*TEXTS, *NUMBERS)},
        }

    @cached_property
    def step_columns(self) -> dict[str, dict[str, Any]]:
        """The columns that steps and values have to be read for, in the same form."""
        step_counts, tokens, first_wrong, verdicts = self._of_steps()
        return {
            "verifier": _column(verdicts, list(VERDICTS)),
            "value": _column(self._first_values()),
            "steps": _column(step_counts),
            "tokens": _column(tokens),
            "first_wrong": _column(first_wrong),
        }

    def _of_steps(self) -> tuple[np.ndarray, ...]:
        """Returns of every rollout: steps, sampled tokens, the first wrong step (-1: none), its verdicts."""
        names = ["token_start", "token_end", "verifier_status", "step_index"]
        table, codes = self.tables["steps"].columns(names), self.steps.codes
        start, end, step = (
            table.column(name).to_numpy() for name in ("token_start", "token_end", "step_index")
        )
        status = table.column("verifier_status").combine_chunks()
        known = codes >= 0
        counts = np.bincount(codes[known], minlength=self.num_rows)
        tokens = np.bincount(codes[known], weights=(end - start)[known], minlength=self.num_rows)
        wrong = known & pc.equal(status, "wrong").to_numpy(zero_copy_only=False)
        judged = known & pc.not_equal(status, "unknown").to_numpy(zero_copy_only=False)
        first_wrong = np.full(self.num_rows, -1, np.int32)
        first_wrong[codes[wrong][::-1]] = step[wrong][::-1]  # the first one is written last
        has_verdict = np.bincount(codes[judged], minlength=self.num_rows) > 0
        verdicts = np.select([first_wrong >= 0, has_verdict], [0, 1], 2)
        return counts.astype(np.int32), tokens.astype(np.int32), first_wrong, verdicts

    def _first_values(self) -> np.ndarray:
        """Returns V(s_0) of every rollout, or of the first state that has a value; NaN without."""
        found = np.full(self.num_rows, np.nan, np.float32)
        if self.values is not None:
            children, _, values = self.values
            has = np.flatnonzero(np.diff(children.starts))
            found[has] = values[children.order[children.starts[has]]]
        return found


def _coded(values: pa.Array) -> tuple[np.ndarray, list[str]]:
    """Returns the code of each element and what the codes mean, in order of their meaning."""
    encoded = pc.dictionary_encode(values)
    meanings = encoded.dictionary.to_pylist()
    order = sorted(range(len(meanings)), key=lambda place: (str(type(meanings[place])), meanings[place]))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    codes = rank[encoded.indices.to_numpy()] if len(values) else np.zeros(0, np.int64)
    return codes, [
        f"{meanings[place]:g}" if isinstance(meanings[place], float) else str(meanings[place])
        for place in order
    ]


def _of_task(coded: tuple[np.ndarray, list[str]], tasks: np.ndarray) -> dict[str, Any]:
    """Returns the column of what rollouts have from their tasks, `?` for those without one."""
    codes, meanings = coded
    return _column(np.append(codes, len(meanings))[tasks], [*meanings, "?"])  # -1 is the last


def _column(numbers: np.ndarray, values: list[str] | None = None) -> dict[str, Any]:
    """Returns numbers in as few bytes as they need, little-endian, as text."""
    if numbers.dtype.kind != "f":
        low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
        kinds = ("i4",) if low < 0 else ("u1", "u2", "u4")
        numbers = numbers.astype(next(kind for kind in kinds if high <= np.iinfo(kind).max))
    kind = f"{numbers.dtype.kind}{numbers.dtype.itemsize}"
    data = base64.b64encode(numbers.astype(numbers.dtype.newbyteorder("<")).tobytes()).decode()
    return {"kind": kind, "data": data} | ({} if values is None else {"values": [visible(v) for v in values]})
