"""Several processes at one stage: who holds it leads, `--join` helps it; no shard is lost or counts twice."""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline.artifacts import ledger
from pipeline.artifacts.commit import Shards
from pipeline.artifacts.lock import CLAIMS, LEAD, Lock, players
from pipeline.artifacts.manifest import NAME, read_manifest
from pipeline.artifacts.plan import Plan
from pipeline.artifacts.progress import Progress
from pipeline.artifacts.signals import HelpEnded, StopRequested
from pipeline.columns import VALUES
from pipeline.processes.life import LIMITS
from pipeline.processes.nodes import MEETING
from pipeline.runner import Stage, Start, run_stage
from pipeline.tables import values_table
from tests.pipeline import toy

ITEMS = (("a", "b"), ("c",), ("d", "e"))
Run = Callable[..., str]


def shards_in(folder: Path, said: list[str], *, leads: bool = True) -> Shards:
    """Returns the shards as one process sees them."""
    console = Console(file=io.StringIO())
    return Shards(
        folder,
        "s",
        "stage key",
        Plan(items=ITEMS, tables=(VALUES,), unit="items", work=None),
        said.append,
        lambda total, unit, done: Progress(console, unit, total, done),
        lambda: None,
        leads,
    )


def commit(shards: Shards, index: int, value: float = 0.5) -> None:
    rows = [(item, 0, "bare", "c", value) for item in ITEMS[index]]
    shards.commit(index, {"values": values_table(rows)}, done=len(rows))


def held_elsewhere(folder: Path, name: str = LEAD, *, seconds_ago: float = 0) -> Path:
    """Writes the lease of a process on another node, which gave its last sign of life some seconds ago."""
    folder.mkdir(parents=True, exist_ok=True)
    path, beat = folder / name, time.time() - seconds_ago
    path.write_text(json.dumps({"host": "elsewhere", "pid": 1, "since": beat}))
    os.utime(path, (beat, beat))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plan.json").write_text("the plan")
    return tmp_path


def test_of_two_processes_only_one_plays_a_shard_and_both_see_what_is_committed(folder: Path) -> None:
    lead, helper = shards_in(folder, []), shards_in(folder, [], leads=False)
    assert lead.claim(0)
    assert not helper.claim(0)
    assert helper.claim(1)
    assert not lead.claim(1)
    commit(helper, 1)
    assert not lead.claim(1)
    assert lead.missing == [0, 2]
    commit(lead, 0)
    lead.refresh()
    helper.refresh()
    assert lead.missing == helper.missing == [2]
    assert lead.table("values") == helper.table("values")


def test_what_was_claimed_and_given_back_may_be_played_by_others(folder: Path) -> None:
    lead, helper = shards_in(folder, []), shards_in(folder, [], leads=False)
    assert lead.claim(0)
    assert lead.claim(2)
    lead.release()
    assert helper.claim(0)
    assert helper.claim(2)


def test_a_dead_process_loses_its_claims_here_at_once_and_elsewhere_after_two_minutes(folder: Path) -> None:
    script = f"import pathlib, sys, time; from {Lock.__module__} import Lock"
    script += "; Lock(pathlib.Path(sys.argv[1]), '00000'); print(flush=True); time.sleep(60)"
    (folder / CLAIMS).mkdir()
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(folder / CLAIMS)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(toy.__file__).parents[2])},
    )
    assert other.stdout is not None
    other.stdout.readline()
    held_elsewhere(folder / CLAIMS, "00001", seconds_ago=100)
    held_elsewhere(folder / CLAIMS, "00002", seconds_ago=121)
    shards = shards_in(folder, [])
    assert [lease["pid"] for lease in players(folder)] == [other.pid, 1]
    assert [shards.claim(index) for index in range(3)] == [False, False, True]
    other.kill()
    other.communicate()
    assert shards.claim(0)


def test_a_process_that_was_taken_for_dead_adds_nothing(folder: Path) -> None:
    said: list[str] = []
    lead, slow = shards_in(folder, []), shards_in(folder, said, leads=False)
    assert slow.claim(0)
    (folder / CLAIMS / "00000").unlink()  # as if its heartbeat had stopped
    assert lead.claim(0)
    commit(lead, 0, 0.25)
    commit(slow, 0, 0.75)
    assert "committed by another process" in said[0]
    [line] = [line for path in (folder / "_ledger").iterdir() for line in path.read_text().splitlines()]
    assert json.loads(line)["generation"] == 0
    for shards in (lead, slow):
        assert shards.table("values")["value"].to_pylist() == [0.25, 0.25]


def test_two_commits_at_one_moment_are_one_and_all_choose_the_same(folder: Path) -> None:
    lead, other = shards_in(folder, []), shards_in(folder, [], leads=False)
    commit(lead, 0, 0.25)
    commit(other, 0, 0.75)  # without a claim, as if neither had seen the other's line
    found = ledger.read(folder)[0]
    assert list(found) == [0]
    for shards in (lead, other):
        shards.refresh()
        assert shards.read(0, "values") == lead.read(0, "values")
        assert shards.counts().done == 2


@pytest.mark.parametrize("how", ["complete", "begun again", "set aside"])
def test_help_ends_with_the_stage(folder: Path, how: str) -> None:
    helper = shards_in(folder, [], leads=False)
    assert helper.claim(0)
    if how == "complete":
        (folder / NAME).write_text("{}")
    elif how == "begun again":
        (folder / "plan.json").write_text("another plan")
    else:
        (folder / "plan.json").unlink()
    with pytest.raises(HelpEnded):
        commit(helper, 0)
    with pytest.raises(HelpEnded):
        helper.claim(1)
    assert not (folder / "shards").exists()


def test_a_start_leaves_alone_what_a_live_helper_is_writing(folder: Path) -> None:
    drafts = folder / "shards" / "values"
    drafts.mkdir(parents=True)
    for index in range(2):
        (drafts / f".part-{index:05d}-elsewhere_1_1.tmp").write_text("half")
    held_elsewhere(folder / CLAIMS, "00001")
    shards_in(folder, []).take_over(repair=False)
    assert [path.name for path in drafts.iterdir()] == [".part-00001-elsewhere_1_1.tmp"]


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Starts a stage; it must end with `code` and say `words`."""
    config = toy.config_in(tmp_path)

    def start(stage: Stage[Any, Any], *argv: str, code: int = 0, words: Iterable[str] = ()) -> str:
        capfd.readouterr()
        ended = run_stage(stage, toy.ToyConfig, [config, *argv])
        said = "".join(capfd.readouterr())
        assert ended == code, said
        assert [part for part in words if part not in said] == [], said
        return said

    return start


def made_by_several(most: int = 9, value: float = 0.5) -> Stage[Any, Any]:
    """Returns a stage that may have help; a start of it stops after `most` shards."""

    def make(start: Start[Any]) -> None:
        for number, index in enumerate(index for index in start.shards.missing if start.shards.claim(index)):
            if number == most:
                raise StopRequested("the test")
            commit(start.shards, index, value)
        start.finish()

    return replace(toy.stage_of("s", ITEMS, make, (VALUES,)), may_have_help=True)


def test_a_helper_plays_what_is_left_and_whoever_leads_then_only_merges(tmp_path: Path, run: Run) -> None:
    run(made_by_several(), "--run", "whole")
    stage, whole = tmp_path / "r" / "s", read_manifest(tmp_path / "whole" / "s")
    run(made_by_several(1), code=75)
    held_elsewhere(stage)
    run(made_by_several(1), "--join", code=75)
    held_elsewhere(stage, seconds_ago=118)  # gone in two seconds: until then it is waited for
    run(made_by_several(), "--join", words=["complete", "planned 5 = done 5"])
    names = sorted(path.name.partition("_")[0] for path in (stage / "logs").iterdir())
    assert names == ["help", "start", "start"]  # all help was this process's
    found = read_manifest(stage)
    assert whole is not None
    assert found is not None
    assert found["content_digest"] == whole["content_digest"]
    assert found["starts"] == 2  # help is no start
    assert not (stage / CLAIMS).exists()
    run(made_by_several(), "--join", words=["up to date"])


def test_a_helper_goes_on_and_leads_when_whoever_did_is_gone(tmp_path: Path, run: Run) -> None:
    run(made_by_several(1), code=75)
    lease = held_elsewhere(tmp_path / "r" / "s")
    commits = 0

    def make(start: Start[Any]) -> None:
        nonlocal commits
        for index in start.shards.missing:
            assert start.shards.claim(index)
            commit(start.shards, index)
            commits += 1
        lease.write_text("")
        start.finish()

    run(replace(made_by_several(), make=lambda start, _: make(start)), "--join", words=["planned 5 = done 5"])
    assert commits == 2
    records = (tmp_path / "r" / "s" / "logs").glob("*/exit.json")
    assert sorted(json.loads(path.read_text())["code"] for path in records) == [0, 0, 75]


def test_a_helper_of_other_settings_is_refused(tmp_path: Path, run: Run) -> None:
    def stage_with(section: str) -> Stage[Any, Any]:
        return replace(made_by_several(1), sections=(section,))

    run(stage_with("source"), code=75)
    held_elsewhere(tmp_path / "r" / "s")
    run(stage_with("source"), "--join", "source.value=0.25", code=3, words=["source.value: 0.5 -> 0.25"])


def test_only_a_stage_that_shares_its_shards_may_be_joined(run: Run) -> None:
    alone = replace(made_by_several(), may_have_help=False)
    run(alone, "--join", code=2, words=["--join: s is made by one process"])
    run(made_by_several(), "--join", "--fresh", code=2)


def trains_in_ranks() -> Stage[Any, Any]:
    return replace(made_by_several(), has_ranks=lambda config: True)


def test_only_a_stage_that_trains_in_ranks_takes_nodes_and_it_refuses_one_of_other_settings(
    tmp_path: Path, run: Run
) -> None:
    run(made_by_several(), "--nodes", "2", code=2, words=["--nodes 2: s trains in no ranks"])
    run(trains_in_ranks(), "--nodes", "0", code=2)
    run(trains_in_ranks(), "--nodes", "2", "--fresh", code=2)
    run(replace(made_by_several(1), sections=("source",)), code=75)
    held_elsewhere(tmp_path / "r" / "s")
    other = replace(trains_in_ranks(), sections=("source",))
    run(other, "--nodes", "2", "source.value=0.25", code=3, words=["source.value: 0.5 -> 0.25"])


def test_of_the_processes_that_a_launcher_starts_on_a_node_the_first_works(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "1")
    run(trains_in_ranks(), "--nodes", "2")
    assert not (tmp_path / "r" / "s").exists()
    assert not os.environ.keys() & {"RANK", "LOCAL_RANK"}  # which its replicas would read
    held_elsewhere(tmp_path / "r" / "s", seconds_ago=119)  # of a node that died; nobody waits there
    monkeypatch.setitem(LIMITS, "start", 0.0)
    run(trains_in_ranks(), "--nodes", "2", code=75, words=["--nodes 2, but 1 came in 0 s (this one)"])
    assert not (tmp_path / "r" / "s" / MEETING).exists()


def test_a_stage_is_not_set_aside_while_others_play_its_shards(tmp_path: Path, run: Run) -> None:
    run(made_by_several(1), code=75)
    stage = tmp_path / "r" / "s"
    claim = held_elsewhere(stage / CLAIMS, "00002")
    run(made_by_several(), "--fresh", code=73, words=["others play its shards (pid 1 on elsewhere)"])
    assert sorted(ledger.read(stage)[0]) == [0]
    claim.unlink()
    run(made_by_several(), "--fresh")


def test_a_helper_waits_until_the_stage_is_planned(tmp_path: Path, run: Run) -> None:
    held_elsewhere(tmp_path / "r" / "s", seconds_ago=119)  # gone in a second, before it has planned
    run(made_by_several(), "--join", words=["planned 5 = done 5"])
