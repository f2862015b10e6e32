"""Shards that this process plays while others play some of them."""

from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, cast

from env.play.shards import play_shards
from env.play.team import Here, Job, OnTick
from env.play.units import Played
from pipeline.artifacts.lock import CLAIMS
from tests.pipeline.test_help import commit, held_elsewhere, shards_in


class Echo(Here):
    """Plays a unit by giving it back."""

    def play(self, jobs: Iterable[Job], on_tick: OnTick) -> Generator[Played, None, None]:
        for _, unit in jobs:
            yield cast("Played", unit)


def test_who_leads_says_whom_it_waits_for_and_plays_what_they_leave(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("the plan")
    said: list[str] = []
    shards, ticks = shards_in(tmp_path, said), list[int]()
    lease = held_elsewhere(tmp_path / CLAIMS, "00001")

    def on_tick(number: int) -> None:
        ticks.append(number)
        lease.write_text("")  # the other one lets go

    hands = Echo(lambda recipe: cast("Any", None), lambda: None, in_parts=False)
    played = []
    for shard, unit in play_shards(hands, shards, lambda index: ("recipe", cast("Any", index)), on_tick):
        commit(shards, shard.index)
        played.append((shard.index, unit))
    assert played == [(0, 0), (2, 2), (1, 1)]
    assert ticks == [0]
    assert said == ["waits for the shards that others play (1): pid 1 on elsewhere"]
    assert shards.missing == []
