"""The tables and the drawing of critic_quality.py, made of its rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

AIMS = {"ev": 0.7, "ev_within": 0.5, "rho_a": 0.6}
MAX_EXCESS = 0.02
TITLES = {
    "ev": "EV",
    "ev_within": "EV within rollouts",
    "rho_a": "advantage correlation",
    "ece_excess": "ECE above its floor",
    "skill_over_task_rate": "skill over task rate",
    "first_error_solver": "first error, solver: exact",
    "first_error_events": "first error, events: exact",
}


def cell(numbers: dict[str, float | None]) -> str:
    """Returns a figure with its interval as text."""
    value, low, high = ("-" if numbers[k] is None else f"{numbers[k]:.2f}" for k in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def figure_of(row: dict[str, Any], name: str) -> dict[str, float | None]:
    """Returns a figure of a row with its bounds: of first errors the share found exactly."""
    found: dict[str, Any] = row[name]
    return found["exact"] if name.startswith("first_error") else found


def over_seeds(rows: Sequence[dict[str, Any]], name: str) -> dict[str, float | None]:
    """Returns the mean of a figure over seeds, with the lowest and the highest of their bounds.

    A bound that one seed does not know is not known: it may lie anywhere.
    """
    found = [figure_of(row, name) for row in rows]
    values = [x["value"] for x in found]
    if any(value is None for value in values):
        return {"value": None, "low": None, "high": None}
    lows, highs = ([x[side] for x in found] for side in ("low", "high"))
    return {
        "value": float(np.mean([value for value in values if value is not None])),
        "low": None if None in lows else min(lows),
        "high": None if None in highs else max(highs),
    }


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Returns all tables: a line per variant, means over seeds, brackets from lowest to highest bound."""
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    lines = [
        f"| variant | seeds | label tokens | trunk | converged | {' | '.join(TITLES.values())} |",
        "|---|---|---|---|---|" + "---|" * len(TITLES),
    ]
    for variant in variants:
        own = [row for row in rows if row["variant"] == variant]
        tokens, size = (np.mean([row[name] for row in own]) for name in ("label_tokens", "trunk_parameters"))
        cells = [f"{tokens:,.0f}", f"{size:,.0f}", f"{sum(row['converged'] for row in own)} of {len(own)}"]
        cells += [cell(over_seeds(own, name)) for name in TITLES]
        lines.append(f"| {variant} | {len(own)} | {' | '.join(cells)} |")
    if parts := [part for row in rows for part in row.get("parts", ())]:
        shown = (*AIMS, "ece_excess")
        lines += ["", f"| soft, by part of the audit | states | {' | '.join(TITLES[x] for x in shown)} |"]
        lines.append("|---|---|" + "---|" * len(shown))
        for name in dict.fromkeys(part["part"] for part in parts):
            own = [part for part in parts if part["part"] == name]
            cells = [f"{sum(part['states'] for part in own):,}", *(cell(over_seeds(own, x)) for x in shown)]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    if told := [row["told"] for row in rows if "told" in row]:
        lines += ["", f"| soft, corrected by trees that are told | {' | '.join(TITLES[x] for x in AIMS)} |"]
        lines.append("|---|" + "---|" * len(AIMS))
        for name in told[0]:
            cells = [cell(over_seeds([of[name] for of in told], x)) for x in AIMS]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def picture(rows: Sequence[dict[str, Any]]) -> str:
    """Returns one drawing: a panel per figure, a line per variant, a point with its interval per seed."""
    from pipeline.report.plots import BLUE, GREY, draw

    variants = list(dict.fromkeys(row["variant"] for row in rows))
    seeds = sorted({row["seed"] for row in rows})

    def paint(axes: Any) -> None:
        figure = axes.figure
        axes.remove()
        panels = figure.subplots(1, len(TITLES), sharey=True)
        for panel, (name, title) in zip(panels, TITLES.items(), strict=True):
            for row in rows:
                found = figure_of(row, name)
                if (value := found["value"]) is None:
                    continue
                bounds = [found[side] for side in ("low", "high")]
                low, high = (value if bound is None else bound for bound in bounds)
                at = (
                    variants.index(row["variant"])
                    + 0.5 * (seeds.index(row["seed"]) + 0.5) / len(seeds)
                    - 0.25
                )
                errors = [[max(0.0, value - low)], [max(0.0, high - value)]]
                filled = "white" if None in bounds else BLUE
                panel.errorbar([value], [at], xerr=errors, fmt="o", ms=3, color=BLUE, mfc=filled, capsize=2)
            panel.axvline(
                AIMS.get(name, MAX_EXCESS if name == "ece_excess" else 0), color=GREY, ls="--", lw=1
            )
            panel.set_title(title, fontsize=9)
        panels[0].set_yticks(range(len(variants)), labels=variants)
        panels[0].set_ylim(len(variants) - 0.5, -0.5)
        shown = [
            found for row in rows for name in TITLES if (found := figure_of(row, name))["value"] is not None
        ]
        if any(found[side] is None for found in shown for side in ("low", "high")):
            figure.supxlabel("hollow: a bound is not known", fontsize=9)

    return draw("quality", paint, size=(2.1 * len(TITLES), 1.2 + 0.4 * len(variants)))
