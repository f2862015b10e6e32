"""Where an actor's seconds went, iteration by iteration."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.pace import SECONDS
from pipeline.report import Drawing, plots

LEAST_SHARE = 0.01  # of all seconds, that a part must have to be drawn by itself


def time_split(history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Returns the seconds of each part by iteration, from metrics.jsonl."""
    split = []
    for line in history:
        parts = {name.removeprefix(SECONDS): x for name, x in line.items() if name.startswith(SECONDS)}
        if parts and "iteration" in line:
            split.append({"iteration": line["iteration"]} | parts)
    return split


def time_curve(report: Mapping[str, Any]) -> Drawing:
    """Returns the parts of each iteration on top of each other; the small ones are in `other`."""
    split = report.get("time", ())
    total: dict[str, float] = {}
    for entry in split:
        for part, seconds in entry.items():
            if part != "iteration":
                total[part] = total.get(part, 0.0) + seconds
    large = sorted(
        (p for p in total if total[p] >= LEAST_SHARE * sum(total.values())), key=lambda p: -total[p]
    )
    parts = [*(part for part in large if part != "other"), "other"]
    drawn = [
        {"iteration": entry["iteration"]}
        | {part: entry.get(part, 0.0) for part in parts}
        | {"other": sum(x for name, x in entry.items() if name not in (*parts[:-1], "iteration"))}
        for entry in split
    ]
    svg = plots.stacked("time", drawn, parts, x="iteration", y_label="seconds")
    return Drawing(
        svg,
        "Where the time of each iteration went, every second once (docs/launch.md). Starts and checkpoints "
        "count in the iteration after them.",
    )
