import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ArtifactError, ExitCode
from pipeline.processes.life import LIMIT, Scope, workers_of
from pipeline.processes.pool import AHEAD, Pool
from pipeline.processes.worker import WorkerDiedError, WorkerFailedError, WorkerHungError
from tests.pipeline.test_workers import eventually, is_running

ROOT = Path(__file__).parents[2]


@pytest.fixture
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pool]:
    size, env = getattr(request, "param", 2), {"PYTHONPATH": str(ROOT)}
    made = Pool("tests.pipeline.toy_worker", size, "worker", log_folder=tmp_path, env=env)
    yield made
    made.close()


def results(pool: Pool, *jobs: tuple[str, Any]) -> list[Any]:
    return list(pool.do(jobs, lambda _: None))


@pytest.mark.parametrize("pool", [1, 3], indirect=True)
def test_results_come_in_the_order_of_the_jobs_and_every_item_is_counted(pool: Pool) -> None:
    items: list[int] = []
    jobs = [("square", n) for n in range(20)]
    for _ in range(2):  # the same workers do what comes later
        assert list(pool.do(jobs, items.append)) == [n**2 for n in range(20)]
    assert sum(items) == 2 * sum(range(20))


def test_a_job_of_a_dead_worker_is_done_by_another(pool: Pool, tmp_path: Path) -> None:
    jobs = [("square", 1), ("die once", str(tmp_path / "died")), ("square", 3)]
    assert results(pool, *jobs) == [1, str(tmp_path / "died"), 9]


def test_an_idle_worker_that_was_killed_is_missed_by_nobody(pool: Pool) -> None:
    [pid] = results(pool, ("pid", None))  # for one job there is one worker
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not is_running(pid))
    assert results(pool, ("square", 2), ("square", 3)) == [4, 9]


def test_a_job_that_kills_every_worker_ends_with_its_last_words_and_the_log(
    pool: Pool, tmp_path: Path
) -> None:
    with pytest.raises(
        WorkerDiedError, match=r"(?s)killed by SIGKILL \(out of memory.*about to die.*all of them: "
    ) as raised:
        results(pool, ("die", None))
    assert str(tmp_path / "worker-") in str(raised.value)
    assert raised.value.code == ExitCode.STOPPED


def test_a_later_pool_of_one_start_leaves_the_logs_of_the_first(pool: Pool, tmp_path: Path) -> None:
    """As an actor has one before and one after its critic is made again."""
    results(pool, ("say", "first"))
    pool.close()
    with closing(
        Pool(pool._module, 1, "worker", log_folder=tmp_path, env={"PYTHONPATH": str(ROOT)})
    ) as later:
        results(later, ("say", "second"))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "worker-0.log": "first\n",
        "worker-0-2.log": "second\n",
    }


@pytest.mark.parametrize("how", ["hang", "stop"])
def test_a_job_that_hangs_ends_all_with_a_word_on_where(
    pool: Pool, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker would hang over it too."""
    monkeypatch.setenv("VDAPO_FAILPOINTS", f"pool.job:2={how}")
    pids = set(results(pool, *[("pid", None)] * 2))
    with workers_of(Scope(None, patience=1 / LIMIT)), pytest.raises(WorkerHungError) as raised:
        results(pool, *[("square", 3)] * 3)
    assert "gave no sign of life for 1 s in its work" in str(raised.value)
    assert ("stopped, last sign" if how == "stop" else "failpoints.py") in str(raised.value)
    assert str(tmp_path / "worker-") in str(raised.value)
    pool.close()
    assert eventually(lambda: not any(map(is_running, pids)))


def test_results_that_wait_for_whoever_asked_are_no_silence(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with workers_of(Scope(None, patience=4 / LIMIT)):
        for _ in pool.do([("square", 1)] * 4, lambda _: None):
            time.sleep(2.5)


def test_an_error_that_says_what_to_do_passes_as_it_is_any_other_is_a_defect(pool: Pool) -> None:
    with pytest.raises(ArtifactError, match="of no use") as raised:
        results(pool, ("refuse", "of no use"))
    assert raised.value.code == ExitCode.QUALITY
    with pytest.raises(
        WorkerFailedError, match=r"(?s)ZeroDivisionError: by nothing.*remove the cause"
    ) as failed:
        results(pool, ("fail", "by nothing"))
    assert failed.value.code == ExitCode.DEFECT
    assert results(pool, ("square", 2)) == [4]


def test_what_a_tick_raises_ends_the_jobs_that_are_being_done(pool: Pool) -> None:
    pool.start(5)  # of which there may be two
    pids = set(results(pool, *[("pid", None)] * 8))
    assert len(pids) <= 2

    def stop(items: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(pool.do([("hang", None), ("hang", None)], stop))
    assert eventually(lambda: not any(map(is_running, pids)))
    assert results(pool, ("square", 2)) == [4]


def test_jobs_are_drawn_as_they_are_needed(pool: Pool) -> None:
    drawn: list[int] = []

    def without_end() -> Iterator[tuple[str, int]]:
        for n in itertools.count():
            drawn.append(n)
            yield "square", n

    with closing(pool.do(without_end(), lambda _: None)) as squares:
        assert [next(squares) for _ in range(10)] == [n**2 for n in range(10)]
    assert len(drawn) <= 10 + AHEAD * 2
