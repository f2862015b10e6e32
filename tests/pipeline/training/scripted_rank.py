"""Stands in for a rank of DeepSpeed: does what its group tells it, without torch."""

import os
import time
from pathlib import Path

from pipeline.errors import ArtifactError
from pipeline.processes.life import sign_of_life
from pipeline.training.rank_group import RankSetup, serve


class ScriptedRank:
    def __init__(self, setup: RankSetup, meeting: str) -> None:
        assert os.path.exists(meeting)
        if setup.head == "refuse":
            raise ValueError("this rank cannot be made")

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def work(self, seconds: float, then: str) -> str:
        time.sleep(seconds)
        if then == "fail":
            raise RuntimeError(f"failed after {seconds} s")
        return then

    def works(self, pieces: int) -> int:
        """Does as many pieces of a tenth of a second each."""
        for _ in range(pieces):
            time.sleep(0.1)
            sign_of_life("a piece")
        return pieces

    def refuse(self, why: str) -> None:
        raise ArtifactError(why)

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
