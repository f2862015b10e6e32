"""The commit protocol as a state machine: whatever is started, stopped, crashed or damaged, in any order.

A model keeps what must be on disk. After every step ledger, manifest and tables are compared with it.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipeline.artifacts import ledger
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.manifest import read_manifest
from pipeline.artifacts.signals import StopRequested
from pipeline.columns import VALUES
from pipeline.errors import ArtifactError
from pipeline.processes import failpoints
from pipeline.runner import Start, run_stage
from pipeline.tables import values_table
from tests.pipeline import toy

SHARDS = (("a", "b"), ("c", "d"), ("e",))
IN_COMMIT = ("shard.before_write", "shard.after_write", "shard.after_fsync", "shard.after_rename")
BEFORE_MANIFEST = ("merge.before", "merge.after", "report_written", "manifest.temporary")
POINTS = (
    *("start", "lock_taken", "plan_written", *IN_COMMIT, "shard.after_ledger"),
    *(*BEFORE_MANIFEST, "manifest.published", "exit"),
)


@dataclasses.dataclass
class Committed:
    """A shard as the ledger should have it: which attempt made it, items that failed, damage since."""

    version: int
    failed: int
    damage: str = ""

    def rows(self, index: int) -> list[tuple[str, int, str, str, float]]:
        done = SHARDS[index][: len(SHARDS[index]) - self.failed]
        return [(item, 0, "bare", "c", self.version / 1000) for item in done]


@contextmanager
def armed(point: str, nth: int) -> Iterator[None]:
    failpoints._hits.clear()
    os.environ["VDAPO_FAILPOINTS"] = f"s.{point}:{nth}=raise" if point else ""
    try:
        yield
    finally:
        del os.environ["VDAPO_FAILPOINTS"]


class Protocol(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="protocol"))
        self.stage_folder = self.folder / "r" / "s"
        self.version = 0
        self.forget()

    def teardown(self) -> None:
        """Whatever happened: one repair is enough, and after it nothing is left to do."""
        try:
            for flag in ("--repair", ""):
                assert self.start(flag, len(SHARDS), -1, False, "", 0) == 0
                assert self.expected(flag, len(SHARDS), False, "", 0) == 0
            self.a_manifest_means_complete_and_every_planned_item_is_there_once()
            assert not [path for path in self.stage_folder.rglob("*") if ".tmp" in path.name]
        finally:
            shutil.rmtree(self.folder)

    def forget(self) -> None:
        """As after --fresh: a new folder."""
        self.lines: list[tuple[int, Committed | None]] = []  # of the ledger, None for a strike
        self.planned = False
        self.complete = False
        self.merged_damage = ""

    @property
    def committed(self) -> dict[int, Committed]:
        last = dict(self.lines)
        return {index: entry for index, entry in sorted(last.items()) if entry is not None}

    def start(self, flag: str, commits: int, failing: int, supersede: bool, point: str, nth: int) -> int:
        def attempt(start: Start[Any], index: int, *, over: bool = False) -> None:
            self.version += 1
            made = Committed(self.version, int(failing == index))
            self.attempts.append((index, made))
            tables = {"values": values_table(made.rows(index))}
            done = len(SHARDS[index]) - made.failed
            start.shards.commit(index, tables, done=done, failed={"infra_error": made.failed}, supersede=over)

        def make(start: Start[Any]) -> None:
            if supersede and start.shards.is_committed(0):
                attempt(start, 0, over=True)
            for number, shard in enumerate(start.shards.to_do()):
                if number == commits:
                    raise StopRequested("the test")
                attempt(start, shard.index)
            start.finish(report={"made": self.version})

        self.attempts: list[tuple[int, Committed]] = []
        stage = toy.stage_of("s", SHARDS, make, (VALUES,))
        with armed(point, nth):
            return run_stage(stage, toy.ToyConfig, [toy.config_in(self.folder), *([flag] if flag else [])])

    def expected(self, flag: str, commits: int, supersede: bool, point: str, nth: int) -> int:
        """Returns the exit code that must have come, after bringing the model to where the disk must be."""
        if point == "start":
            return 1
        if self.complete and not flag:
            return 3 if self.merged_damage == "cut" else 0
        if point == "lock_taken":
            return 1
        if self.complete and flag == "--repair" and not self.merged_damage:
            return 0
        if self.complete or flag == "--fresh":
            self.forget()
        self.planned = True
        if point == "plan_written":
            return 1
        if not self.taken_over(flag == "--repair"):
            return 3
        open_shards = [index for index in range(len(SHARDS)) if index not in self.committed]
        wanted = [0] * (supersede and 0 in self.committed) + open_shards[:commits]
        in_commit = point.startswith("shard.") and nth <= len(wanted)
        assert [index for index, _ in self.attempts] == (wanted[:nth] if in_commit else wanted)
        counted = self.attempts[: nth - (point in IN_COMMIT)] if in_commit else self.attempts
        self.lines += counted
        if in_commit:
            return 1
        if commits < len(open_shards):
            return 75
        if any(entry.failed for entry in self.committed.values()):
            return 5
        if any(entry.damage for entry in self.committed.values()):
            return 3
        self.complete = point not in BEFORE_MANIFEST
        return 1 if point in (*BEFORE_MANIFEST, "manifest.published", "exit") else 0

    def taken_over(self, repair: bool) -> bool:
        """Returns whether the committed shards were found usable; strikes those that are repaired."""
        for index, entry in self.committed.items():
            if entry.damage and repair:
                self.lines.append((index, None))
            elif entry.damage == "cut":
                return False
        if repair:
            self.lines += [(index, None) for index, entry in self.committed.items() if entry.failed]
        return True

    @rule(
        flag=st.sampled_from(["", "", "--repair", "--repair", "--fresh"]),
        commits=st.sampled_from([0, 1, 1, 2, 2, 3]),
        failing=st.sampled_from([-1, -1, -1, 0, 2]),
        supersede=st.booleans(),
        crash=st.none() | st.tuples(st.sampled_from(POINTS), st.integers(1, 3)),
    )
    def a_start(
        self, flag: str, commits: int, failing: int, supersede: bool, crash: tuple[str, int] | None
    ) -> None:
        point, nth = crash or ("", 0)
        nth = nth if point.startswith("shard.") else min(nth, 1)
        code = self.start(flag, commits, failing, supersede, point, nth)
        assert code == self.expected(flag, commits, supersede, point, nth)

    @precondition(lambda self: self.complete or self.committed)
    @rule(how=st.sampled_from(["cut", "flip"]), data=st.data())
    def damage(self, how: str, data: st.DataObject) -> None:
        if self.complete:
            path, known = self.stage_folder / "values.parquet", self.merged_damage
            self.merged_damage = known or how
        else:
            index = data.draw(st.sampled_from(sorted(self.committed)))
            entry = ledger.read(self.stage_folder)[0][index]
            path, known = self.stage_folder / entry.files["values"]["path"], self.committed[index].damage
            self.committed[index].damage = known or how
        if known:
            return  # a second flip would mend the first
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] if how == "cut" else whole[:20] + bytes([whole[20] ^ 255]) + whole[21:])

    @precondition(lambda self: self.lines and not self.complete)
    @rule()
    def tear_the_last_line_of_the_ledger(self) -> None:
        [path] = (self.stage_folder / "_ledger").glob("*.jsonl")
        path.write_bytes(path.read_bytes()[:-5])
        lines = path.read_bytes().split(b"\n")
        path.write_bytes(b"\n".join(lines[:-1]) + b"\n" * (len(lines) > 1))  # torn, then cut off whole
        self.lines.pop()

    @invariant()
    def the_ledger_has_what_was_committed_and_no_more(self) -> None:
        if self.complete:
            return
        entries, _ = ledger.read(self.stage_folder)
        assert list(entries) == list(self.committed)
        for index, entry in entries.items():
            known = self.committed[index]
            counts = ledger.Counts.of(len(SHARDS[index]), [(entry.done, entry.failed, entry.skipped)])
            assert counts.balanced
            assert entry.files["values"]["rows"] == len(known.rows(index))

    @invariant()
    def a_manifest_means_complete_and_every_planned_item_is_there_once(self) -> None:
        manifest = read_manifest(self.stage_folder)
        assert (manifest is not None) == self.complete
        assert (self.stage_folder / "plan.json").exists() == self.planned
        if manifest is None:
            return
        counts = ledger.Counts(**manifest["counts"])
        assert counts.balanced
        assert counts.planned == counts.done == sum(map(len, SHARDS))
        if self.merged_damage:
            with pytest.raises(ArtifactError):
                Artifact.open(self.folder / "r", "s").verify()
            return
        artifact = Artifact.open(self.folder / "r", "s")
        artifact.verify()
        rows = [row for index, entry in self.committed.items() for row in entry.rows(index)]
        assert artifact.table("values") == values_table(rows)


def at_most(max_examples: int) -> settings:
    """Returns hypothesis's settings for so many protocols."""
    return settings(
        max_examples=max_examples,
        stateful_step_count=14,
        deadline=None,
        phases=(
            Phase.reuse,
            Phase.generate,
        ),  # shrinking takes minutes; steps are printed as they are
        suppress_health_check=list(HealthCheck),
    )


class TestProtocol(Protocol.TestCase):
    settings = at_most(20)


@pytest.mark.slow
class TestProtocolAtLength(Protocol.TestCase):
    settings = at_most(60)
