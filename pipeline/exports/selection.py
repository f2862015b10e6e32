"""Which rollouts leave a run, a batch in memory at a time; the others are counted by kind."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pipeline.artifacts.artifact import Artifact
from pipeline.errors import ArtifactError, ConfigError
from pipeline.exports.files import Part


@dataclass(frozen=True)
class Selection:
    """The rollouts of a stage that somebody asked for, and how many others were met, by kind."""

    run_dir: Path
    stage: str = "rollouts"
    split: str | None = None  # of tasks; None: any
    min_reward: float | None = None
    left_out: Counter[str] = field(default_factory=Counter)

    @cached_property
    def split_of(self) -> dict[str, str]:
        """Task id -> split."""
        tasks = Artifact.open(self.run_dir, "tasks").batches("tasks", ["task_id", "split"])
        return {row["task_id"]: row["split"] for batch in tasks for row in batch.to_pylist()}

    @cached_property
    def num_said(self) -> dict[str, int]:
        """Rollout id -> how many messages its policy said; others of an assistant are its task's own."""
        found: dict[str, int] = {}
        names = ["rollout_id", "message_index"]
        for batch in Artifact.open(self.run_dir, self.stage).batches("steps", names):
            for rollout_id, place in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                found[rollout_id] = max(found.get(rollout_id, 0), place + 1)
        return found

    def check_split(self) -> None:
        """Raises ConfigError if no task has the split that was asked for."""
        if self.split not in (known := sorted(set(self.split_of.values()))):
            raise ConfigError(f"--split is {self.split!r}; this run's tasks have: {', '.join(known)}")

    def again(self) -> Self:
        """Returns the same, with nothing counted yet."""
        return replace(self, left_out=Counter())

    def part(self, file: str, rows: int, description: str = "") -> Part:
        """Returns what became of it in a file."""
        return Part(file, rows, description, {kind: n for kind, n in sorted(self.left_out.items()) if n})

    def rows(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yields graded rollouts in the table's order, with these columns, and counts the others.

        `columns` hold task_id, reward and env_status. A null reward is nobody's failure: it never becomes 0.
        """
        for batch in Artifact.open(self.run_dir, self.stage).batches("rollouts", columns):
            for row in batch.to_pylist():
                if kind := self._why_not(row):
                    self.left_out[kind] += 1
                else:
                    yield row

    def _why_not(self, row: dict[str, Any]) -> str | None:
        if self.split is not None and self.split_of.get(row["task_id"]) != self.split:
            return "other_split"
        if row["reward"] is None:
            return f"ungraded ({row['env_status']})"
        if self.min_reward is not None and row["reward"] < self.min_reward:
            return "low_reward"
        return None

    def nothing_left(self, wanted: str) -> ArtifactError:
        """Returns the error of an export without rows."""
        others = ", ".join(f"{number} {kind}" for kind, number in sorted(self.left_out.items())) or "none"
        return ArtifactError(
            f"{self.run_dir / self.stage} has no {wanted}; rollouts left out: {others}. Next: another "
            "--stage, --split or --min-reward, or play some from bare prompts, with "
            "rollouts.chain.feedback_free_share above 0 or one attempt alone"
        )
