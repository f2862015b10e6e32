"""Ranks on another node are started, fed, watched and ended as those of this one. They are stand-ins."""

import os
import re
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.errors import ArtifactError, ExitCode
from pipeline.processes import nodes as transport
from pipeline.processes.life import LIMIT, LIMITS, Scope, workers_of
from pipeline.processes.nodes import MEETING, Meeting, Nodes
from pipeline.processes.shared_weights import Layout, SharedWeights, mapped
from pipeline.processes.worker import WorkerDiedError, WorkerFailedError, WorkerHungError
from pipeline.training import rank_group
from pipeline.training.rank_group import DeepSpeedOptions, RankGroup, RankSetup
from tests.pipeline.test_workers import eventually, is_running
from tests.pipeline.training.agent import scripted
from tests.pipeline.training.nodes import Pair, two_nodes

MakeGroup = Callable[..., RankGroup]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_nodes(tmp_path_factory.mktemp("stage")) as found:
        yield found


@pytest.fixture
def make_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeGroup]:
    groups: list[RankGroup] = []
    monkeypatch.setattr(rank_group, "Worker", scripted)

    def make(pair: Pair, *, say: str = "", num_ranks: int = 1, weights: Layout | None = None) -> RankGroup:
        options = DeepSpeedOptions(num_ranks=num_ranks)
        setup = RankSetup("", {}, weights, None, say, {}, 0.0, 1.0, False, options)  # type: ignore[arg-type]
        with workers_of(pair.scope()):
            groups.append(RankGroup(setup))
        return groups[-1]

    yield make
    for group in groups:
        group.close()


def test_ranks_of_all_nodes_see_their_place_get_their_own_arguments_and_answer_in_order(
    pair: Pair, make_group: MakeGroup
) -> None:
    group = make_group(pair, num_ranks=2)
    for rank, seen in enumerate(group.tell("environment")):
        places = {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": "4"}
        assert seen.items() >= places.items()
    assert group.tell_each("work", [(0.0, name) for name in "abcd"]) == list("abcd")
    here, there = [group.tell("pid")[place : place + 2] for place in (0, 2)]
    assert here == [worker.pid for worker in group.workers]
    assert {path.name for path in pair.scope().log_folder.glob("*rank-3*")}  # type: ignore[union-attr]
    group.close()
    assert not any(is_running(pid) for pid in (*here, *there))  # at once: their memory is wanted


@pytest.mark.slow
def test_several_groups_live_side_by_side(pair: Pair, make_group: MakeGroup) -> None:
    first, second = make_group(pair), make_group(pair)
    assert first.tell("work", 0.0, "a") == second.tell("work", 0.0, "a") == ["a", "a"]
    second.close()
    assert first.tell("work", 0.0, "b") == ["b", "b"]


def test_what_far_ranks_read_and_write_of_this_nodes_memory_travels(
    pair: Pair, make_group: MakeGroup
) -> None:
    source, target, theirs = SharedWeights(), SharedWeights(), SharedWeights()
    weights = {"a": torch.arange(60.0), "b": torch.arange(100, dtype=torch.bfloat16)}
    filled, layout = source.write(weights), target.write(weights)
    mapped(layout.path)[:] = b"\xff" * layout.num_bytes
    group = make_group(pair, weights=theirs.write({"w": torch.ones(16)}))
    wanted = bytes(mapped(filled.path))
    assert group.tell("read", filled) == [wanted, wanted]
    before = threading.active_count()
    assert [written.path for written in group.tell("write_mine", filled, layout)] == [layout.path] * 2
    assert bytes(mapped(layout.path)) == wanted  # half of it by each
    mapped(layout.path)[:] = b"\xff" * layout.num_bytes
    number = len(wanted) // 64
    group.ranks[1].node.tell([("write_mine", (filled, layout))])  # type: ignore[union-attr]
    group.ranks[1].connection.recv()
    runs = [bytes(mapped(layout.path))[64 * place : 64 * place + 64] for place in range(number)]
    for place, run in enumerate(runs):  # and nothing else comes back
        assert run == (wanted[64 * place : 64 * place + 64] if place % 2 else b"\xff" * 64)
    assert group.tell("weights") == [bytes(torch.ones(16).numpy())] * 2  # what scores may read it again
    assert threading.active_count() == before
    for memory in (source, target, theirs):
        memory.close()


@pytest.mark.parametrize("first", [0, 1])
def test_the_rank_that_failed_first_is_named_with_its_node(
    first: int, pair: Pair, make_group: MakeGroup
) -> None:
    seconds = [(0.3 * (rank != first), "fail") for rank in range(2)]
    with pytest.raises(WorkerFailedError, match=rf"(?s)^DeepSpeed rank {first} on .*failed after 0.0 s"):
        make_group(pair).tell_each("work", seconds)


@pytest.mark.slow
def test_a_far_failure_that_came_first_is_named_though_it_is_heard_of_last(
    pair: Pair, make_group: MakeGroup
) -> None:
    group = make_group(pair)
    timers = [
        threading.Timer(seconds, os.kill, (pair.agent.pid, number))
        for seconds, number in ((0.7, signal.SIGSTOP), (3.0, signal.SIGCONT))
    ]
    for timer in timers:
        timer.start()
    with pytest.raises(WorkerFailedError, match=r"(?s)^DeepSpeed rank 1 on .*failed after 1.0 s"):
        group.tell_each("work", [(2.0, "fail"), (1.0, "fail")])
    for timer in timers:
        timer.join()


def test_a_far_rank_that_is_killed_is_named_before_those_that_fail_over_it(
    pair: Pair, make_group: MakeGroup
) -> None:
    group = make_group(pair)
    killing = threading.Timer(0.5, os.kill, (group.tell("pid")[1], signal.SIGKILL))
    killing.start()
    with pytest.raises(WorkerDiedError, match=r"^DeepSpeed rank 1 on .* was killed by SIGKILL") as raised:
        group.tell_each("work", [(0.5, "fail"), (5.0, "done")])
    assert raised.value.code == ExitCode.STOPPED
    killing.join()


def test_what_a_far_rank_refuses_arrives_as_it_is(pair: Pair, make_group: MakeGroup) -> None:
    with pytest.raises(ArtifactError, match=r"^of an earlier version") as raised:
        make_group(pair).tell_each("refuse", [("of an earlier version",)] * 2)
    assert raised.value.code == ExitCode.ARTIFACT
    with pytest.raises(OSError, match="No space left"):
        make_group(pair).tell("no_room")
    with pytest.raises(WorkerFailedError, match="this rank cannot be made"):
        make_group(pair, say="refuse")


@pytest.mark.parametrize("behind", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_of_ranks_that_wait_the_one_that_hangs_is_named_with_its_stack(
    behind: int, pair: Pair, make_group: MakeGroup, tmp_path: Path
) -> None:
    group = make_group(pair)
    pids = group.tell("pid")
    assert group.tell("meet", str(tmp_path / "once")) == [2, 2]
    with workers_of(Scope(None, patience=2 / LIMIT)), pytest.raises(WorkerHungError) as raised:
        group.tell("wait_for_ever", behind, str(tmp_path / "twice"))
    said = str(raised.value)
    assert re.match(rf"DeepSpeed rank {behind} on \S+ \(process {pids[behind]}\) gave no sign of life", said)
    assert "in wait_for_ever: waiting, last sign after a step, number 1 of call 3" in said
    assert f"DeepSpeed rank {1 - behind} on" in said
    assert "in wait_for_ever\n" in said  # its stack
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.slow
def test_a_far_rank_that_is_stopped_is_named_and_one_that_works_is_not_hung(
    pair: Pair, make_group: MakeGroup, tmp_path: Path
) -> None:
    group = make_group(pair)
    with workers_of(Scope(None, patience=2 / LIMIT)):
        assert group.tell_each("works", [(0,), (40,)]) == [0, 40]
    os.kill(group.tell("pid")[1], signal.SIGSTOP)
    with workers_of(Scope(None, patience=2 / LIMIT)), pytest.raises(WorkerHungError) as raised:
        group.tell("meet", str(tmp_path / "once"))
    assert re.match(r"DeepSpeed rank 1 on .* in meet: stopped", str(raised.value))


def test_a_node_whose_agent_is_killed_is_lost_with_its_ranks(make_group: MakeGroup, tmp_path: Path) -> None:
    with two_nodes(tmp_path / "stage") as pair:
        group = make_group(pair)
        pids = group.tell("pid")
        killing = threading.Timer(0.5, pair.agent.kill)
        killing.start()
        with pytest.raises(WorkerDiedError) as raised:
            group.tell_each("work", [(1.0, "fail"), (30.0, "done")])
        killing.join()
        said = str(raised.value)
        assert re.match(
            rf"DeepSpeed rank 1 on \S+, of the node \S+ \(process {pair.agent.pid}\), was lost", said
        )
        assert "its process has ended" in said
        assert raised.value.code == ExitCode.STOPPED
        assert eventually(lambda: not is_running(pids[1]))
        with pytest.raises(WorkerDiedError, match=r"the node .* was lost"):
            make_group(pair)


@pytest.mark.slow
def test_a_node_that_falls_silent_is_lost(
    make_group: MakeGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "SHORTEST", 0.0)
    monkeypatch.setitem(LIMITS, "a link", 2.0)
    with two_nodes(tmp_path / "stage") as pair:
        group = make_group(pair)
        os.kill(pair.agent.pid, signal.SIGSTOP)
        with pytest.raises(WorkerDiedError, match="was lost: it said nothing for too long"):
            group.tell_each("work", [(0.0, "done"), (30.0, "done")])
        monkeypatch.setattr("pipeline.training.far_ranks.PATIENCE", 0.1)
        group.close()


def test_an_agent_ends_with_the_code_of_the_stage_or_with_75_where_its_process_is_lost(
    make_group: MakeGroup, tmp_path: Path
) -> None:
    with two_nodes(tmp_path / "ends") as pair:
        pids = make_group(pair).tell("pid")
        assert stat.S_IMODE((pair.folder / MEETING).stat().st_mode) == 0o600
        pair.nodes.end(ExitCode.QUALITY, "the gate refused")
        assert pair.ended() == (ExitCode.QUALITY, "the gate refused\n")
        assert not (pair.folder / MEETING).exists()
        assert not is_running(pids[1])  # though nobody closed the group
    with two_nodes(tmp_path / "is lost") as pair:
        pids = make_group(pair).tell("pid")
        for _, link in pair.nodes._lent:
            link.close()  # as the kernel does for a process that dies
        code, said = pair.ended()
        assert code == ExitCode.STOPPED
        assert "the same command again, on every node" in said
        assert not is_running(pids[1])


@pytest.mark.slow
def test_who_does_not_know_the_key_or_comes_too_late_is_not_let_in(
    pair: Pair, make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "HANDSHAKE", 1.0)
    meeting = Meeting.read(pair.folder)
    assert meeting is not None
    refused: list[Any] = []

    def call(key: str) -> None:
        try:
            _, link = Meeting(meeting.addresses, meeting.port, key).call(("lends", "somebody", 1))
            with closing(link):
                link.receive()
        except (OSError, EOFError) as error:
            refused.append(error)

    for key in ("00" * 32, meeting.key):
        calling = threading.Thread(target=call, args=(key,))
        calling.start()
        time.sleep(0.2)
        assert make_group(pair).tell("work", 0.0, "done") == ["done"] * 2
        calling.join()
    assert len(refused) == 2


def test_nodes_that_do_not_come_in_time_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIMITS, "start", 0.1)
    nodes = Nodes(tmp_path, 3, "start_000")
    with pytest.raises(
        WorkerDiedError, match=r"^--nodes 3, but 1 came in 0 s \(this one\)\. Next: "
    ) as raised:
        nodes.gather(lambda text: None, lambda: None)
    assert raised.value.code == ExitCode.STOPPED
    nodes.end(75, "")
    assert Meeting.read(tmp_path) is None
