"""Stands in for a rank of DeepSpeed: does what its group tells it, without torch."""

import errno
import os
import time
from pathlib import Path

from pipeline.errors import ArtifactError
from pipeline.processes.life import sign_of_life
from pipeline.processes.shared_weights import Layout, Written, mapped
from pipeline.training.rank_group import RankSetup, serve


class ScriptedRank:
    def __init__(self, setup: RankSetup, meeting: str) -> None:
        assert "://" in meeting or os.path.exists(meeting)
        self._setup = setup
        if setup.head == "refuse":
            raise ValueError("this rank cannot be made")
        if setup.head == "slow":
            self.load(60)

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def pid(self) -> int:
        return os.getpid()

    def work(self, seconds: float, then: str) -> str:
        time.sleep(seconds)
        if then == "fail":
            raise RuntimeError(f"failed after {seconds} s")
        return then

    def load(self, seconds: float) -> None:
        time.sleep(seconds)

    def works(self, pieces: int) -> int:
        """Does as many pieces of a tenth of a second each."""
        for _ in range(pieces):
            time.sleep(0.1)
            sign_of_life("a piece")
        return pieces

    def refuse(self, why: str) -> None:
        raise ArtifactError(why)

    def no_room(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def weights(self) -> bytes:
        """Returns what lies in the memory of the setup."""
        assert isinstance(self._setup.weights, Layout)
        return self.read(self._setup.weights)

    def read(self, layout: Layout) -> bytes:
        return bytes(mapped(layout.path))

    def write_mine(self, source: Layout, layout: Layout) -> Written:
        """Copies the bytes whose place, by 64, is this rank's."""
        theirs, mine = mapped(source.path), mapped(layout.path)
        firsts = range(64 * int(os.environ["RANK"]), len(mine), 64 * int(os.environ["WORLD_SIZE"]))
        runs = tuple((first, first + 64) for first in firsts)
        for first, last in runs:
            mine[first:last] = theirs[first:last]
        return Written(layout.path, runs)

    def wait_for_ever(self, rank: int, folder: str) -> int:
        """Waits for the others, one of which never comes."""
        sign_of_life("a step")
        while os.environ["RANK"] == str(rank):
            time.sleep(60)
        return self.meet(folder)

    def meet(self, folder: str) -> int:
        """Waits for the other ranks, as a collective does, and for ever if one never comes."""
        place = Path(folder)
        place.mkdir(exist_ok=True)
        (place / os.environ["RANK"]).touch()
        sign_of_life("a step")
        while len(found := list(place.iterdir())) < int(os.environ["WORLD_SIZE"]):
            time.sleep(0.01)
        return len(found)


if __name__ == "__main__":
    serve(ScriptedRank)
