"""The picture of where an actor's seconds went."""

from typing import Any

import pytest

from stages.wiring import time_split
from stages.wiring.time_split import time_curve

HISTORY: list[dict[str, Any]] = [
    {"iteration": 0, "update": 1, "loss": 0.5},
    {"iteration": 0, "timing_s/sampling": 60.0, "timing_s/commit": 0.5, "timing_s/other": 10.0},
    {"iteration": 1, "timing_s/sampling": 20.0, "timing_s/update": 9.0, "timing_s/commit": 0.25},
]


def test_small_parts_are_drawn_with_what_belongs_to_none_and_none_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split = time_split.time_split(HISTORY)
    assert split[0] == {"iteration": 0, "sampling": 60.0, "commit": 0.5, "other": 10.0}
    drawn: list[Any] = []
    monkeypatch.setattr(time_split.plots, "stacked", lambda *given, **named: drawn.append(given) or "")
    time_curve({"time": split})
    [(_, entries, parts)] = drawn
    assert parts == ["sampling", "update", "other"]
    assert entries == [
        {"iteration": 0, "sampling": 60.0, "update": 0.0, "other": 10.5},
        {"iteration": 1, "sampling": 20.0, "update": 9.0, "other": 0.25},
    ]


def test_bars_stand_on_top_of_each_other_and_without_a_line_there_is_no_drawing() -> None:
    svg = time_curve({"time": time_split.time_split(HISTORY)}).svg
    assert all(f">{part}<" in svg for part in ("sampling", "update", "other", "seconds"))
    assert time_curve({}).svg == ""


def test_more_parts_than_colours_are_told_apart() -> None:
    line = {f"timing_s/part {i}": 5.0 for i in range(10)}
    assert time_curve({"time": time_split.time_split([{"iteration": 0, **line}])}).svg.count("<pattern") >= 1
    assert time_curve({"time": time_split.time_split(HISTORY)}).svg.count("<pattern") == 0
