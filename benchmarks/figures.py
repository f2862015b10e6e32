"""Draws docs/figures/ from benchmarks/results/; the demo's figure comes with benchmarks.demo_seeds.

python -m benchmarks.figures            # make figures
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks._looks import curves_by_arm, for_critic, since
from benchmarks._regime_table import REGIMES
from benchmarks._regimes import comparison_of
from benchmarks._results import Row, Table
from benchmarks._run import ROOT
from benchmarks._tables import over_seeds, present, rows_of
from pipeline.comparison import mean_success
from pipeline.report.canvas import BLUE, GREY, RED, draw
from pipeline.report.plots import curves

FOLDER = ROOT / "docs" / "figures"
POINTS = 60  # of a curve
AMORTISED = "v_dapo, critic amortised"
QUALITY = {
    "ev": ("EV", 0.7),
    "ev_within": ("EV within rollouts", 0.5),
    "rho_a": ("advantage correlation", 0.6),
}
DRIFT = {
    "bias": "bias of the values",
    "slope": "slope of the log-odds",
    "kl": "KL to pi_0",
    "success": "success on val",
}


def quality() -> str:
    """Returns one panel per aim, a line per variant of critic_quality: means over seeds, outermost bounds."""
    tables = list(rows_of("critic_quality").values())
    variants = tables[0].variants("converged")

    def paint(axes: Any) -> None:
        figure = axes.figure
        axes.remove()
        panels = figure.subplots(1, len(QUALITY), sharey=True)
        for panel, (metric, (title, aim)) in zip(panels, QUALITY.items(), strict=True):
            rows = [over_seeds(tables, variant, metric) for variant in variants]
            places = range(len(rows))
            panel.hlines(places, [row.low for row in rows], [row.high for row in rows], color=GREY, lw=1)
            panel.plot([row.value for row in rows], places, "o", color=BLUE, ms=3)
            panel.axvline(aim, color=GREY, ls="--", lw=1)
            panel.set_title(title, fontsize=9)
        panels[0].set_yticks(range(len(variants)), labels=variants)
        panels[0].set_ylim(len(variants) - 0.5, -0.5)

    return draw("quality", paint, size=(6.5, 3.5))


def curve(table: Table, arm: str, metric: str) -> tuple[list[int], list[Row]]:
    """Returns the iterations of an arm of critic_drift that have a figure, and its rows."""
    found = [
        r
        for r in table.rows
        if r.metric == metric and r.variant.startswith(f"{arm} ") and r.variant[len(arm) + 1 :].isdigit()
    ]
    return [int(row.variant.rpartition(" ")[2]) for row in found], found


def drift() -> str:
    """Returns one panel per figure of critic_drift against iterations, a curve per arm."""
    [table] = rows_of("critic_drift").values()

    def paint(axes: Any) -> None:
        figure = axes.figure
        axes.remove()
        for panel, (metric, title) in zip(
            figure.subplots(2, 2, sharex=True).flat, DRIFT.items(), strict=True
        ):
            for arm, colour in (("far", RED), ("watched", BLUE)):
                xs, rows = curve(table, arm, metric)
                panel.plot(xs, [row.value for row in rows], color=colour, lw=1, label=arm)
            panel.set_title(title, fontsize=9)
        figure.axes[0].legend(frameon=False, fontsize=8)
        figure.supxlabel("iteration", fontsize=9)

    return draw("drift", paint, size=(6, 4))


def regime(name: str) -> str:
    """Returns success of the arms of a regime along all rollouts that they paid for, a curve per arm.

    Means over the seeds that an arm has, with intervals over these; v_dapo again as if its critic were free.
    """
    entries: list[dict[str, float]] = []
    tables = rows_of(name)
    by_arm = curves_by_arm(tables)
    amortised = {s: since(curve, for_critic(tables[s], "v_dapo")) for s, curve in by_arm["v_dapo"].items()}
    for arm, by_seed in {**by_arm, AMORTISED: amortised}.items():
        own = list(by_seed.values())
        paid = np.linspace(0, np.mean([curve.costs[-1] for curve in own]), POINTS)
        entries += [
            {"rollouts": cost, arm: found.value, f"{arm}_low": found.low, f"{arm}_high": found.high}
            for cost, found in zip(paid.tolist(), mean_success(own, paid), strict=True)
        ]
    arms = ("v_dapo", "no_critic", "decoupled_clip", AMORTISED)
    level = comparison_of(name)["threshold"]
    return curves(name, entries, arms, x="rollouts", y_label="success of first tries (%)", level=level)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Callable[[], str]] = {"critic_quality": quality, "critic_drift": drift}
    figures |= {name: partial(regime, name) for name in REGIMES if present(name)}
    for name, make in figures.items():
        (FOLDER / f"{name}.svg").write_text(make() + "\n", encoding="utf-8")
        print(f"wrote docs/figures/{name}.svg")
