import io

import pytest
from rich.console import Console

from pipeline.artifacts.progress import Progress


def test_without_a_terminal_a_plain_line_comes_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work of earlier starts counts, but does not speed up the rate."""
    sink, now = io.StringIO(), 1000.0
    monkeypatch.setattr("pipeline.artifacts.progress.time.monotonic", lambda: now)
    with Progress(Console(file=sink, width=200), "toy: items", 100, initial=20) as advance:
        for _ in range(50):
            now += 0.5
            advance(1)
    assert sink.getvalue().splitlines() == [
        "toy: items: 40 of 100 (40 %), 2/s, 30 s left",
        "toy: items: 60 of 100 (60 %), 2/s, 20 s left",
    ]


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = io.StringIO()
    with Progress(Console(file=sink, width=80, force_terminal=True), "bar", 4) as bar:
        bar.advance(2)
        bar._bar and bar._bar.refresh()
    assert "bar" in sink.getvalue()
    assert "2 of 4 (50 %)" in sink.getvalue()
