"""The group of ranks: what a rank is given, who is to blame. Ranks are stand-ins here."""

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.artifacts.signals import StopFlag, StopRequested
from pipeline.errors import ArtifactError, ExitCode, explain
from pipeline.processes.life import LIMIT, Scope, workers_of
from pipeline.processes.worker import Worker, WorkerDiedError, WorkerFailedError, WorkerHungError
from pipeline.training import rank_group
from pipeline.training.rank_group import (
    ALLOCATORS,
    DeepSpeedOptions,
    RankGroup,
    RankSetup,
    rank_environment,
)
from tests.pipeline.test_workers import is_running

ROOT = Path(__file__).parents[3]
MakeGroup = Callable[..., RankGroup]


@pytest.fixture
def make_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeGroup]:
    groups: list[RankGroup] = []

    def start(module: str, name: str, *, env: dict[str, str]) -> Worker:
        assert module == "pipeline.training.deepspeed_rank"
        return Worker("tests.pipeline.training.scripted_rank", name, env=env | {"PYTHONPATH": str(ROOT)})

    monkeypatch.setattr(rank_group, "Worker", start)

    def make(num_ranks: int = 2, say: str = "") -> RankGroup:
        options = DeepSpeedOptions(num_ranks=num_ranks)
        groups.append(RankGroup(RankSetup("", {}, None, None, say, {}, 0.0, 1.0, False, options)))  # type: ignore[arg-type]
        return groups[-1]

    yield make
    for group in groups:
        group.close()


def test_ranks_see_their_place_get_their_own_arguments_and_answer_in_order(
    make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ALLOCATORS:
        monkeypatch.delenv(name, raising=False)
    for rank, seen in enumerate((group := make_group()).tell("environment")):
        assert (seen["RANK"], seen["LOCAL_RANK"], seen["WORLD_SIZE"]) == (str(rank), str(rank), "2")
        assert seen["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert group.tell_each("work", [(0.2, "a"), (0.0, "b")]) == ["a", "b"]


def test_the_rank_that_failed_first_is_the_one_that_is_named(make_group: MakeGroup) -> None:
    group = make_group()
    with pytest.raises(WorkerFailedError, match=r"(?s)^DeepSpeed rank 1 .*failed after 0.0 s"):
        group.tell_each("work", [(0.5, "fail"), (0.0, "fail")])


def test_a_rank_that_is_killed_is_noticed_while_others_work(make_group: MakeGroup) -> None:
    group = make_group()
    killing = threading.Timer(0.3, os.kill, (group.workers[1].pid, signal.SIGKILL))
    killing.start()
    with pytest.raises(WorkerDiedError, match=r"^DeepSpeed rank 1 .* was killed by SIGKILL"):
        group.tell("work", 2.0, "done")
    killing.join()


def test_a_rank_that_cannot_be_made_says_so(make_group: MakeGroup) -> None:
    with pytest.raises(WorkerFailedError, match="this rank cannot be made"):
        make_group(say="refuse")


@pytest.mark.parametrize("doing", ["start", "load"])
def test_a_stop_is_heard_while_ranks_start_or_load(doing: str, make_group: MakeGroup) -> None:
    stop = StopFlag()
    with stop.installed():
        group = make_group() if doing == "load" else None
        signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(StopRequested):
            group.tell("load", 60.0) if group else make_group(say="slow")


@pytest.mark.parametrize(("how", "behind", "state"), [("hang", 1, "waiting"), ("stop", 0, "stopped")])
def test_ranks_that_wait_for_one_that_hangs_are_killed_and_it_is_named(
    how: str, behind: int, state: str, make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VDAPO_FAILPOINTS", f"rank{behind}.meet:2={how}")
    with workers_of(Scope(tmp_path)):
        group = make_group()
    assert group.tell("meet", str(tmp_path / "once")) == [2, 2]
    done = [4 * (rank == behind) for rank in range(2)]  # of the one that will hang, more than of the other
    assert group.tell_each("works", [(pieces,) for pieces in done]) == done
    with workers_of(Scope(None, patience=1 / LIMIT)), pytest.raises(WorkerHungError) as raised:
        group.tell("meet", str(tmp_path / "twice"))
    said = str(raised.value)
    assert said.startswith(f"DeepSpeed rank {behind} ")
    assert f"no sign of life for 1 s in meet: {state}, last sign after a piece, number 4 of call 2" in said
    # It looks for the other again and again, so it may be caught at work.
    other = rf"DeepSpeed rank {1 - behind}: (waiting|running), last sign after a step, number 1 of call 3"
    assert re.search(other, said)
    assert str(tmp_path / f"DeepSpeed-rank-{behind}.log") in said
    assert "in meet" in (tmp_path / f"DeepSpeed-rank-{1 - behind}.log").read_text()  # the stack of who waits
    assert not any(is_running(worker.pid) for worker in group.workers)


def test_a_rank_that_waits_for_one_that_works_is_not_hung(make_group: MakeGroup) -> None:
    group = make_group()
    with workers_of(Scope(None, patience=3 / LIMIT)):
        assert group.tell_each("works", [(0,), (40,)]) == [0, 40]


def test_a_full_disk_of_a_rank_is_no_defect_of_it(
    make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VDAPO_FAILPOINTS", "rank1.meet:1=enospc")
    group = make_group()
    with pytest.raises(OSError, match="No space left") as raised:
        group.tell("meet", str(tmp_path / "once"))
    explained = explain(raised.value, tmp_path)
    assert explained is not None
    assert explained[0] == ExitCode.DISK
    assert not any(is_running(worker.pid) for worker in group.workers)


def test_what_a_rank_finds_wrong_with_a_checkpoint_is_said_as_it_is(make_group: MakeGroup) -> None:
    with pytest.raises(ArtifactError, match=r"^of an earlier version") as raised:
        make_group().tell("refuse", "of an earlier version")
    assert raised.value.code == ExitCode.ARTIFACT


@pytest.mark.parametrize(("threads", "ranks", "expected"), [(0, 2, 3), (0, 8, 1), (5, 8, 5)])
def test_ranks_share_the_cores_and_keep_what_the_user_set_of_the_allocator(
    threads: int, ranks: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)))
    for name in ALLOCATORS:
        with monkeypatch.context() as patch:
            patch.setenv(name, "max_split_size_mb:128")
            env = rank_environment(0, DeepSpeedOptions(num_ranks=ranks, threads=threads))
        assert env["OMP_NUM_THREADS"] == str(expected)
        assert not env.keys() & set(ALLOCATORS)  # so it is inherited
