"""Who may take a stage that another process holds, or seems to; and who waits for it, and how long."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts.lock import Lock
from pipeline.artifacts.signals import HelpEnded
from pipeline.errors import ArtifactError
from pipeline.runner import Start
from tests.pipeline.test_help import Run, held_elsewhere, made_by_several, run, trains_in_ranks

__all__ = ["run"]  # a fixture


@contextmanager
def beating(folder: Path) -> Iterator[None]:
    """A live process on another host holds a folder: its lease is renewed all the time."""
    lease, over = held_elsewhere(folder), threading.Event()

    def beat() -> None:
        while not over.wait(0.05):
            os.utime(lease)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture(autouse=True)
def short_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.artifacts.lock.WATCH_SECONDS", 0.5)


def test_a_fresh_lease_that_nobody_renews_gives_way_to_the_kernel_s_lock(tmp_path: Path, run: Run) -> None:
    """As of a container that has been killed and has another host name now."""
    held_elsewhere(tmp_path / "r" / "s")
    run(made_by_several(), words=["the lease of pid 1 on elsewhere is fresh", "complete"])


def test_a_lease_that_is_renewed_holds_though_the_kernel_gives_its_lock_to_all(
    tmp_path: Path, run: Run
) -> None:
    with beating(tmp_path / "r" / "s"):
        run(made_by_several(), code=73, words=["host elsewhere, pid 1"])


def test_who_ends_while_its_lease_is_watched_leaves_the_lock(tmp_path: Path) -> None:
    lease = held_elsewhere(tmp_path)
    Lock(tmp_path, say=lambda _: threading.Timer(0.2, lease.write_text, [""]).start()).release()


def test_where_there_are_no_kernel_locks_a_fresh_lease_is_not_doubted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, how: int) -> None:
        raise OSError("not here")

    monkeypatch.setattr("fcntl.flock", flock)
    held_elsewhere(tmp_path)
    with pytest.raises(ArtifactError, match="host elsewhere, pid 1"):
        Lock(tmp_path)


def test_the_umask_decides_who_else_may_take_a_lock(tmp_path: Path) -> None:
    former = os.umask(0o002)
    try:
        Lock(tmp_path).release()
    finally:
        os.umask(former)
    assert (tmp_path / "_lock").stat().st_mode & 0o777 == 0o664


@pytest.mark.parametrize(
    ("option", "until"),
    [(("--join",), "has planned the stage"), (("--nodes", "2"), "asks for more nodes")],
)
def test_who_holds_a_stage_and_wants_no_help_is_not_waited_for_for_ever(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...], until: str
) -> None:
    held_elsewhere(tmp_path / "r" / "s")
    monkeypatch.setattr("pipeline.runner.ASKING_SECONDS", 0.6)
    monkeypatch.setattr("pipeline.artifacts.turn.PAUSE", 0.01)
    said = run(trains_in_ranks(), *option, code=73, words=["In 1 s this one waited until it " + until])
    assert said.count("pid 1 on elsewhere holds") == 1


def test_a_helper_leaves_a_stage_whose_folder_is_gone(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(made_by_several(1), code=75)
    held_elsewhere(tmp_path / "r" / "s")
    monkeypatch.setattr("pipeline.artifacts.turn.PAUSE", 0.01)

    def make(start: Start[Any]) -> None:
        shutil.rmtree(start.folder)
        raise HelpEnded

    gone = replace(made_by_several(), make=lambda start, _: make(start))
    run(gone, "--join", code=74, words=["No such file or directory", "_lock"])
