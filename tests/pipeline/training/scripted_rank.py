"""Stands in for a rank of DeepSpeed: does what its group tells it, without torch."""

import os
import time

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


if __name__ == "__main__":
    serve(ScriptedRank)
