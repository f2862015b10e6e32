"""The group of ranks: what a rank is given, who is to blame. Ranks are stand-ins here."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.processes.worker import Worker, WorkerDiedError, WorkerFailedError
from pipeline.training import rank_group
from pipeline.training.rank_group import (
    ALLOCATORS,
    DeepSpeedOptions,
    RankGroup,
    RankSetup,
    rank_environment,
)

ROOT = Path(__file__).parents[3]
MakeGroup = Callable[..., RankGroup]


@pytest.fixture
def make_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeGroup]:
    groups: list[RankGroup] = []

    def start(module: str, name: str, *, env: dict[str, str]) -> Worker:
        assert module == "pipeline.training.deepspeed_rank"
        return Worker("tests.pipeline.training.scripted_rank", name, env=env | {"PYTHONPATH": str(ROOT)})

    monkeypatch.setattr(rank_group, "Worker", start)

    def make(num_ranks: int = 2, timeout: float = 60.0, say: str = "") -> RankGroup:
        options = DeepSpeedOptions(num_ranks=num_ranks, timeout=timeout)
        groups.append(RankGroup(RankSetup("", {}, None, say, {}, 0.0, 1.0, False, options)))  # type: ignore[arg-type]
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


def test_ranks_that_are_silent_or_cannot_be_made_are_said_so(make_group: MakeGroup) -> None:
    with pytest.raises(WorkerFailedError, match="this rank cannot be made"):
        make_group(say="refuse")
    group = make_group(timeout=10.0)
    group._timeout = 0.5
    with pytest.raises(WorkerDiedError, match=r"^DeepSpeed rank 0 .*did not answer within 0 s"):
        group.tell("work", 2.0, "done")


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
