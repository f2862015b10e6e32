"""Drawings as inline SVG: text stays text, and equal numbers give equal bytes.

Intervals come as `pipeline.statistics.interval_dict` makes them: value, low, high, null where undefined.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from pipeline.report.canvas import (
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    LINES,
    MARKERS,
    ORANGE,
    RED,
    WIDTH,
    draw,
    lead,
    name_axis,
)

MOST_INSIDE = 5
"""Curves whose legend leaves room for them."""
Numbers = Mapping[str, float | None]
"""An interval: value, low, high."""


def curves(
    name: str,
    entries: Sequence[Mapping[str, Any]],
    measures: Sequence[str],
    *,
    x: str,
    y_label: str,
    level: float | None = None,
    marks: Sequence[tuple[float, str]] = (),
    labels: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Returns measures of some entries along their key `x`, where they have both; "" if none has.

    Bounds are `{measure}_low` and `{measure}_high`: a band, or bars if some entries have none, between which
    a band would have no width. `level` is a dashed line, `marks` are places on x, `labels` how measures
    and x are called. The points of an entry lead to its `link`.
    """
    found = {
        measure: points
        for measure in measures
        if (points := [e for e in entries if isinstance(e.get(measure), int | float) and x in e])
    }
    if not found:
        return ""
    names = [labels.get(measure, measure) for measure in found]
    columns = 2 if max(map(len, names)) <= 20 else 1
    below = -(-len(found) // columns) if len(found) > MOST_INSIDE else 0  # lines of a legend under the axes

    def paint(axes: Any) -> None:
        for place, (measure, points) in enumerate(found.items()):
            keys = (x, measure, f"{measure}_low", f"{measure}_high")
            table = [[entry.get(key) for key in keys] for entry in points]
            at, y, low, high = np.array(table, dtype=float).T  # None becomes NaN
            colour = COLOURS[place % len(COLOURS)]
            marker = "" if len(at) > 40 else MARKERS[place % len(MARKERS)]
            turn = place // len(COLOURS) + (0 if marker else place)
            style = LINES[turn % len(LINES)]
            axes.plot(at, y, color=colour, ls=style, marker=marker, ms=4, label=names[place])
            linked = [bool(entry.get("link")) for entry in points]
            lead(axes, at[linked], y[linked], [entry["link"] for entry in points if entry.get("link")])
            known = np.isfinite(low) & np.isfinite(high)
            if known.all():
                axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
            elif known.any():
                axes.vlines(at[known], low[known], high[known], color=colour, alpha=0.3)
        if all(float(entry[x]).is_integer() for points in found.values() for entry in points):
            axes.xaxis.get_major_locator().set_params(integer=True)
        if level is not None:
            axes.axhline(level, color=GREY, ls="--", lw=1)
        for where, text in marks:
            axes.axvline(where, color=GREY, ls=":")
            axes.annotate(f" {text}", (where, 1), xycoords=("data", "axes fraction"), va="top", fontsize=9)
        axes.set(xlabel=labels.get(x, x))
        name_axis(axes.yaxis, y_label)
        if below:
            axes.figure.legend(loc="outside lower left", ncols=columns)
        elif len(found) > 1:
            axes.legend()

    return draw(name, paint, size=(WIDTH, 3.4 + 0.2 * below))


def stacked(
    name: str, entries: Sequence[Mapping[str, Any]], parts: Sequence[str], *, x: str, y_label: str
) -> str:
    """Returns the parts of each entry on top of each other, as a bar at its `x`; "" without entries."""
    if not entries:
        return ""

    def paint(axes: Any) -> None:
        at, below = [entry[x] for entry in entries], np.zeros(len(entries))
        for place, part in enumerate(parts):
            height = np.array([entry[part] for entry in entries], dtype=float)
            colour, hatch = COLOURS[place % len(COLOURS)], "//" if place >= len(COLOURS) else None
            axes.bar(at, height, bottom=below, width=0.9, label=part, color=colour, edgecolor="white",
                     linewidth=0, hatch=hatch)  # fmt: skip
            below += height
        if all(float(place).is_integer() for place in at):
            axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set(xlabel=x, ylabel=y_label)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), reverse=True)  # in the order of the bars

    return draw(name, paint)


def reliability(
    name: str,
    bins: Sequence[Mapping[str, Any]],
    *,
    floor: float = 0.0,
    rising: Sequence[tuple[float, float]] = (),
    bounds: tuple[float, float] = (0.0, 1.0),
    names: tuple[str, str] = ("predicted chance of success (%)", "observed success (%)"),
    links: Sequence[str] = (),
    counted: str = "states",
) -> str:
    """Returns `predicted` against `observed` of each bin, with intervals, and how many are `counted` below.

    `rising` are points of the best curve that never falls. The grey band is the diagonal plus and minus the
    floor: what a perfect critic would show on average. Hollow points have no bounds. `links` are where
    points lead, one for each bin.
    """

    def paint(axes: Any) -> None:
        top, bottom = axes
        diagonal = np.array(bounds)
        if floor:
            top.fill_between(diagonal, diagonal - floor, diagonal + floor, color=GREY, alpha=0.25,
                             linewidth=0, label="floor: a perfect critic")  # fmt: skip
        top.plot(diagonal, diagonal, color=GREY, ls="--", lw=1)
        middle, errors, known = _errors([of["observed"] for of in bins])
        x = np.array([of["predicted"] for of in bins], dtype=float)
        top.errorbar(
            x[known], middle[known], yerr=errors[:, known], fmt="o", ms=5, color=BLUE, capsize=2, label="95 %"
        )
        top.plot(x[~known], middle[~known], "o", ms=5, mfc="none", color=BLUE)
        lead(top, x, middle, links)
        if rising:
            top.plot(*zip(*rising, strict=True), color=ORANGE, lw=1.5, label="best rising curve")
        frame = bounds[0] - 0.02, bounds[1] + 0.02
        top.set(xlim=frame, ylim=frame)
        name_axis(top.yaxis, names[1])
        top.legend(loc="upper left")
        bottom.bar(x, [of["num_states"] for of in bins], width=0.02 * (bounds[1] - bounds[0]), color=GREY)
        bottom.set(ylabel=counted)
        name_axis(bottom.xaxis, names[0])

    return draw(name, paint, size=(WIDTH, 5.0), rows=2)


def _errors(intervals: Sequence[Numbers]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns values [N], distances to their bounds [2, N], and which have both bounds."""
    table = [(interval["value"], interval["low"], interval["high"]) for interval in intervals]
    value, low, high = np.array(table, dtype=float).reshape(-1, 3).T  # None becomes NaN
    known = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(known, low, value), np.where(known, high, value)
    return value, np.clip(np.nan_to_num([value - low, high - value]), 0, None), known


def points(name: str, rows: Mapping[str, Numbers], *, x_label: str, level: float | None = 0.0) -> str:
    """Returns one value with its interval per named row, the first on top; undefined rows stay empty.

    A point without bounds is hollow, and its name says so: it must not pass for an exact one.
    """

    def paint(axes: Any) -> None:
        at = np.arange(len(rows))[::-1]
        value, errors, known = _errors(list(rows.values()))
        axes.errorbar(value[known], at[known], xerr=errors[:, known], fmt="o", color=BLUE, capsize=3)
        axes.plot(value[~known], at[~known], "o", mfc="none", color=BLUE)
        if level is not None:
            axes.axvline(level, color=GREY, ls="--", lw=1)
        silent = ~known & np.isfinite(value)
        axes.set_yticks(at, labels=[n + " (no bounds)" * bool(s) for n, s in zip(rows, silent, strict=True)])
        axes.set(ylim=(-0.6, len(rows) - 0.4))
        name_axis(axes.xaxis, x_label)

    return draw(name, paint, size=(WIDTH, 1.1 + 0.36 * max(1, len(rows))))


def compared(name: str, rows: Mapping[str, Mapping[str, Numbers]], *, x_label: str) -> str:
    """Returns several series with their intervals in each named row, the first on top; "" without any.

    A series may be absent from a row. A point without bounds is hollow.
    """
    series = list(dict.fromkeys(which for row in rows.values() for which in row))
    if not series:
        return ""

    def paint(axes: Any) -> None:
        for place, which in enumerate(series):
            colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
            shift = 0.24 * ((len(series) - 1) / 2 - place)
            has = [(at, row[which]) for at, row in zip(range(len(rows))[::-1], rows.values(), strict=True)
                   if which in row]  # fmt: skip
            value, errors, known = _errors([of for _, of in has])
            at = np.array([at for at, _ in has]) + shift
            axes.errorbar(value[known], at[known], xerr=errors[:, known], fmt=marker, ms=5, color=colour,
                          capsize=2, label=which)  # fmt: skip
            axes.plot(value[~known], at[~known], marker, ms=5, mfc="none", color=colour)
        axes.set_yticks(range(len(rows))[::-1], labels=list(rows))
        axes.set(ylim=(-0.6, len(rows) - 0.4))
        name_axis(axes.xaxis, x_label)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(series), borderaxespad=0)

    return draw(name, paint, size=(WIDTH, 1.3 + (0.2 + 0.2 * len(series)) * len(rows)))


def shares(name: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    """Returns a bar of 100 % for each named row, cut into its parts, with the row's sum; "" without any.

    Parts have one colour and one order in all rows, those of the first row first; a share of 6 % or more is
    written on it.
    """
    rows = {row: parts for row, parts in rows.items() if sum(parts.values()) > 0}
    keys = dict.fromkeys(part for parts in rows.values() for part in parts)
    names = [part for part in keys if any(parts.get(part) for parts in rows.values())]
    if not names:
        return ""

    def paint(axes: Any) -> None:
        left = np.zeros(len(rows))
        at = np.arange(len(rows))[::-1]
        totals = np.array([sum(parts.values()) for parts in rows.values()])
        for place, part in enumerate(names):
            wide = np.array([parts.get(part, 0.0) for parts in rows.values()]) / totals
            axes.barh(at, wide, left=left, height=0.62, label=part, color=COLOURS[place % len(COLOURS)],
                      edgecolor="white", hatch="//" if place >= len(COLOURS) else None)  # fmt: skip
            for y, start, share in zip(at, left, wide, strict=True):
                if share >= 0.06:
                    axes.text(start + share / 2, y, f"{share:.0%}", color="white", ha="center", va="center",
                              fontsize=10)  # fmt: skip
            left += wide
        axes.set_yticks(at, labels=[f"{row}\n{total:,.0f}" for row, total in zip(rows, totals, strict=True)])
        axes.set(xlim=(0, 1), xticks=[])
        axes.grid(visible=False)
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.tick_params(length=0)
        axes.legend(loc="upper left", bbox_to_anchor=(0, 0), ncols=3, borderaxespad=0, handlelength=1.2)

    return draw(name, paint, size=(WIDTH, 0.55 + 0.62 * len(rows) + 0.24 * -(-len(names) // 3)))


def value_path(
    name: str,
    values: Sequence[float],
    statuses: Sequence[str],
    *,
    reward: float | None,
    audited: Sequence[tuple[int, float, float, float]] = (),
) -> str:
    """Returns V before each step of one rollout [T], the reward at its end, verifier marks and audited bands.

    Statuses are ok, wrong or unknown; `audited` has (step, measured value, low, high) of states with fresh
    continuations.
    """

    def paint(axes: Any) -> None:
        T = len(values)
        axes.plot(range(T), values, color=BLUE, marker="o", ms=4, label="critic")
        if reward is not None:
            colour = GREEN if reward > 0.5 else RED
            axes.plot([T - 1, T], [values[-1], reward], color=BLUE, ls=":")
            axes.plot([T], [reward], marker="*", ms=12, color=colour, ls="", label="outcome")
        if audited:
            steps, middle, low, high = (np.array(column) for column in zip(*audited, strict=True))
            errors = np.clip([middle - low, high - middle], 0, None)
            axes.errorbar(steps, middle, yerr=errors, fmt="s", ms=4, color=ORANGE, capsize=3,
                          label="fresh continuations, 95 %")  # fmt: skip
        wrong = [t + 0.5 for t, status in enumerate(statuses) if status == "wrong"]
        if wrong:
            axes.plot(wrong, [0.02] * len(wrong), "x", color=RED, ms=8, mew=2, label="verifier: wrong")
        axes.set(ylim=(-0.05, 1.08), xlim=(-0.3, T + 0.3), xlabel="step")
        name_axis(axes.yaxis, "chance of success (%)")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, 1.28), ncols=2)

    return draw(name, paint, size=(WIDTH, 3.4))
