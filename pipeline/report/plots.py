"""Drawings as inline SVG: text stays text, and equal numbers give equal bytes.

No pyplot: figures are made without global state, so drawing is safe in any process.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BLUE, RED, GREEN, GREY = "#0b5cad", "#b3261e", "#1a7f37", "#8b949e"
_COLOURS = (BLUE, "#c2571a", GREEN, "#7b3fa0", "#8a6d00", "#3c7d8c", RED, "#4a4a4a")
_MARKERS = "osD^vPX*"
WIDTH = 5.0
"""Inches of every drawing: as wide as a phone, where its letters then have the size that they are set in."""
_SETTINGS = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e9ed",
    "axes.axisbelow": True,
}


def draw(
    name: str, paint: Callable[[Any], None], *, size: tuple[float, float] = (WIDTH, 3.4), rows: int = 1
) -> str:
    """Returns an SVG element of what `paint` puts on the axes it is given.

    Args:
        name: keeps the ids of drawings on one page apart.
        paint: gets one axes, or with rows > 1 an array of them sharing x.
        size: inches.
        rows: axes on top of each other, the first three times as high.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS | {"svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        if rows == 1:
            axes: Any = figure.subplots()
        else:
            axes = figure.subplots(rows, 1, sharex=True, height_ratios=[3] + [1] * (rows - 1))
        paint(axes)
        file = io.StringIO()
        figure.savefig(
            file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Nothing refers to the ids of groups; the others get the drawing's name, to be unique on a page.
    svg = re.sub(r'<g id="[^"]+">', "<g>", svg)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    return re.sub(r'(url\(|href=")#([^")]+)', rf"\1#{name}-\2", svg).strip()


@dataclass(frozen=True, slots=True)
class Line:
    """A curve; low and high, if given, are drawn as a band, as bars if some are NaN. All of equal length."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def paint_bounds(
    axes: Any, x: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str
) -> None:
    """Draws a band between bounds, or a bar at each point that has them if some (NaN) have not.

    A band would have no width at a point between neighbours without bounds.
    """
    at, below, above = (np.asarray(of, dtype=float) for of in (x, low, high))
    known = np.isfinite(below) & np.isfinite(above)
    if not known.any():
        return
    if known.all():
        axes.fill_between(at, below, above, color=colour, alpha=0.15, linewidth=0)
    else:
        axes.vlines(at[known], below[known], above[known], color=colour, alpha=0.3)


def lines(
    name: str,
    curves: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    level: float | None = None,
    level_name: str = "",
    marks: Sequence[tuple[float, str]] = (),
    diagonal: bool = False,
) -> str:
    """Returns curves with bands, e.g. learning curves.

    `level` is a dashed line, `marks` are places on x, `diagonal` is the line from 0 to 1.
    """

    def paint(axes: Any) -> None:
        if diagonal:
            axes.plot([0, 1], [0, 1], color=GREY, ls="--", lw=1)
        for place, curve in enumerate(curves):
            colour = _COLOURS[place % len(_COLOURS)]
            marker = "" if diagonal or len(curve.x) > 40 else _MARKERS[place % len(_MARKERS)]
            axes.plot(curve.x, curve.y, color=colour, marker=marker, ms=4, label=curve.name)
            if curve.low is not None and curve.high is not None:
                paint_bounds(axes, curve.x, curve.low, curve.high, colour)
        if level is not None:
            axes.axhline(level, color=GREY, ls="--", label=level_name or None)
        for x, text in marks:
            axes.axvline(x, color=GREY, ls=":")
            axes.annotate(text, (x, 1), xycoords=("data", "axes fraction"), ha="left", va="top", fontsize=9)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        if len(curves) > 1 or level_name:
            axes.legend(frameon=False)

    return draw(name, paint)


def scatter(
    name: str,
    x: Sequence[float],
    y: Sequence[float],
    *,
    x_label: str,
    y_label: str,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> str:
    """Returns points with the diagonal on which x and y agree."""

    def paint(axes: Any) -> None:
        axes.plot(bounds, bounds, color=GREY, ls="--", lw=1)
        axes.scatter(x, y, s=14, color=BLUE, alpha=0.4, linewidths=0)
        margin = 0.03 * (bounds[1] - bounds[0])
        axes.set(xlim=(bounds[0] - margin, bounds[1] + margin), ylim=(bounds[0] - margin, bounds[1] + margin))
        axes.set_aspect("equal")
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)

    return draw(name, paint, size=(WIDTH, WIDTH))


def reliability(
    name: str,
    predicted: Sequence[float],
    observed: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    counts: Sequence[int],
    *,
    floor: float,
    rising: Sequence[tuple[float, float]] = (),
) -> str:
    """Returns predicted against observed success by bin, with intervals, and the bins' sizes below.

    `rising` are points of the best curve that never falls. The grey band is the diagonal plus and minus the
    floor: what a perfect critic would show on average.
    """

    def paint(axes: Any) -> None:
        top, bottom = axes
        diagonal = np.array([0.0, 1.0])
        top.fill_between(diagonal, diagonal - floor, diagonal + floor, color=GREY, alpha=0.25, linewidth=0,
                         label="floor: a perfect critic")  # fmt: skip
        top.plot(diagonal, diagonal, color=GREY, ls="--", lw=1)
        errors = np.clip([np.subtract(observed, low), np.subtract(high, observed)], 0, None)
        top.errorbar(
            predicted, observed, yerr=errors, fmt="o", ms=5, color=BLUE, capsize=2, label="bins, 95 %"
        )
        if rising:
            top.plot(*zip(*rising, strict=True), color="#c2571a", lw=1.5, label="best rising curve")
        top.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        top.set_ylabel("observed success")
        top.legend(frameon=False, loc="upper left")
        bottom.bar(predicted, counts, width=0.02, color=GREY)
        bottom.set_ylabel("states")
        bottom.set_xlabel("predicted chance of success")

    return draw(name, paint, size=(WIDTH, 5.4), rows=2)


def points(
    name: str,
    names: Sequence[str],
    values: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    *,
    x_label: str,
    level: float | None = 0.0,
) -> str:
    """Returns one value with its interval per named row, the first on top; NaN rows stay empty."""

    def paint(axes: Any) -> None:
        at = np.arange(len(names))[::-1]
        y = np.asarray(values, dtype=np.float64)
        errors = np.clip(np.nan_to_num([np.subtract(y, low), np.subtract(high, y)]), 0, None)
        axes.errorbar(y, at, xerr=errors, fmt="o", color=BLUE, capsize=3)
        if level is not None:
            axes.axvline(level, color=GREY, ls="--", lw=1)
        axes.set_yticks(at, labels=list(names))
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.set_xlabel(x_label)

    return draw(name, paint, size=(WIDTH, 1.1 + 0.36 * max(1, len(names))))


def grid(
    name: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    words: Sequence[Sequence[str]],
    *,
    x_label: str,
    bound: float,
) -> str:
    """Returns a table of coloured cells: red above 0, blue below, full at +- bound; None stays empty."""

    def paint(axes: Any) -> None:
        numbers = np.array([[np.nan if v is None else v for v in row] for row in values], dtype=np.float64)
        edges = (np.arange(n + 1) - 0.5 for n in numbers.shape[::-1])
        cells = np.ma.masked_invalid(numbers)
        axes.pcolormesh(*edges, cells, cmap="RdBu_r", vmin=-bound, vmax=bound, edgecolors="white")
        axes.invert_yaxis()
        for i, row in enumerate(words):
            for j, text in enumerate(row):
                dark = abs(np.nan_to_num(numbers[i, j])) > 0.7 * bound
                axes.text(
                    j, i, text, ha="center", va="center", fontsize=9, color="white" if dark else "black"
                )
        axes.set_xticks(range(len(columns)), labels=list(columns))
        axes.set_yticks(range(len(rows)), labels=list(rows))
        axes.grid(visible=False)
        axes.set_xlabel(x_label)

    return draw(name, paint, size=(WIDTH, 1.0 + 0.55 * max(1, len(rows))))


def shares(name: str, names: Sequence[str], values: Sequence[float], *, x_label: str) -> str:
    """Returns a bar per name, the first on top, with its share of all in percent beside it."""

    def paint(axes: Any) -> None:
        at = np.arange(len(names))[::-1]
        total = sum(values) or 1
        axes.barh(at, values, height=0.6, color=BLUE)
        for y, value in zip(at, values, strict=True):
            axes.annotate(f" {100 * value / total:.0f} %", (value, y), va="center", fontsize=10)
        axes.set_yticks(at, labels=list(names))
        axes.margins(x=0.12)
        axes.set_xlabel(x_label)

    return draw(name, paint, size=(WIDTH, 0.9 + 0.36 * max(1, len(names))))


def value_path(
    name: str,
    values: Sequence[float],
    statuses: Sequence[str],
    *,
    reward: float | None,
    audited: Sequence[tuple[int, float, float, float]] = (),
) -> str:
    """Returns V before each step of one rollout, the reward at its end, verifier marks and audited bands.

    Args:
        name: of the drawing.
        values: [T].
        statuses: [T] ok, wrong or unknown.
        reward: the outcome, drawn at T; None if ungraded.
        audited: (step, measured value, low, high) of states with fresh continuations.
    """

    def paint(axes: Any) -> None:
        T = len(values)
        axes.plot(range(T), values, color=BLUE, marker="o", ms=4, label="critic")
        if reward is not None:
            axes.plot([T - 1, T], [values[-1], reward], color=BLUE, ls=":")
            axes.plot(
                [T], [reward], marker="*", ms=12, color=GREEN if reward > 0.5 else RED, ls="", label="outcome"
            )
        if audited:
            steps, middle, low, high = (np.array(column) for column in zip(*audited, strict=True))
            errors = np.clip([middle - low, high - middle], 0, None)
            axes.errorbar(steps, middle, yerr=errors, fmt="s", ms=4, color="#c2571a", capsize=3,
                          label="fresh continuations, 95 %")  # fmt: skip
        wrong = [t for t, status in enumerate(statuses) if status == "wrong"]
        if wrong:
            axes.plot(
                [t + 0.5 for t in wrong],
                [0.02] * len(wrong),
                "x",
                color=RED,
                ms=8,
                mew=2,
                label="verifier: wrong",
            )
        axes.set(ylim=(-0.05, 1.08), xlim=(-0.3, T + 0.3))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("step")
        axes.set_ylabel("chance of success")
        axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, 1.28), ncols=2)

    return draw(name, paint, size=(WIDTH, 3.4))
