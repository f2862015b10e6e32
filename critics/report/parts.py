"""What the sections of the page share: words for measures, cells of tables, points with bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

READINGS = {
    "ev": "share of the differences between states explained; 0 is useless, 1 perfect",
    "ev_within": "the same inside one rollout; at most 0 is useless for steps",
    "rho_a": "correlation of the critic's step advantages with the true ones",
    "sign_agreement": "share of the steps that are clear with so many continuations, whose direction it sees",
    "flattening": "spread of its advantages over the true spread; far below 1 is flat",
    "slope_a": "slope of its advantages on the true ones",
    "adv_rmse": "typical error of one step advantage",
    "rmse": "typical distance to the true chance",
    "mae": "mean distance to the measured chance; continuations' noise included",
    "bias": "mean of predicted minus measured",
    "brier": "mean squared error against single samples; lower is better",
    "nll": "mean negative log-likelihood of single samples, nats",
    "skill_over_task_rate": "Brier gained over the task's own success rate",
    "skill_over_constant": "Brier gained over the best constant",
    "skill_over_position": "Brier gained over the position alone",
    "ece": "calibration error, 15 equal-mass bins; the true one lies in the interval",
    "ece_floor": "what a perfect critic would show with as many samples",
    "ece_excess": "calibration error minus its floor, which the gate asks about",
    "reliability": "Brier lost to miscalibration; noise adds to it",
    "resolution": "Brier gained by telling states apart; noise adds to it",
    "uncertainty": "Brier of the best constant",
    "logit_slope": "1 if neither over- nor underconfident",
    "logit_intercept": "0 if unbiased",
    "cov_a": "covariance of step advantages with the true ones; at 0 or below steps mislead",
    "spearman_a": "rank correlation of advantages; not debiased, so too low",
    "auroc": "chance that a success is ranked above a failure",
    "auroc_within_task": "AUROC within one task",
    "auprc_within_task": "of a success: how many succeed of its task's samples that rank as high or higher",
    "auprc": "area under precision and recall",
    "p_where_lost": "mean prediction where the solver proves that nothing can succeed",
    "share_above_solver": "share of states predicted more than .05 above the best possible chance",
    "sibling_top1": "share of sets whose best next step, as measured, it names; a perfect critic misses some",
    "sibling_chance": "the same of a blind choice",
    "sibling_excess": "the difference of these two, which the gate asks about; grows with continuations",
    "sibling_reference": "the same of some of the continuations, judged by the others",
    "sibling_reference_excess": "and its difference to a blind choice; noisy, so no bound",
    "sibling_pairs": "of two clearly different next steps it prefers the better (a coin: .5)",
    "improvement_variance": "spread of the true values of next steps: what there is to gain",
    "improvement_covariance": "how much of it following the critic would gain",
    "exact": "first error of the rollouts that have one, found at the step",
    "within_one": "found at the step or next to it",
    "none": "rollouts without an error in which it sees none",
    "f1": "2 ab / (a + b) of `exact` and `none`",
}


def plots_module() -> Any:
    """Returns `pipeline.report.plots`; imported late because only pages need it."""
    from pipeline.report import plots

    return plots


def cell(numbers: Mapping[str, float | None], digits: int = 3) -> str:
    """Returns a figure with its interval as a cell of a table."""
    if numbers["value"] is None:
        return "undefined"
    text = f"{numbers['value']:.{digits}f}"
    if not has_bounds(numbers):
        return f"{text} [no bounds]"
    return f"{text} [{numbers['low']:.{digits}f}, {numbers['high']:.{digits}f}]"


def count(x: float | str | None) -> str:
    """Returns a count with thousands apart, a share with three digits."""
    if isinstance(x, float):
        return f"{x:.3f}" if abs(x) < 10 else f"{x:,.0f}"
    return "undefined" if x is None else f"{x:,}" if isinstance(x, int) else x


def has_bounds(numbers: Mapping[str, float | None]) -> bool:
    """Returns whether both bounds are known: else nobody knows how exact the value is."""
    return all(math.isfinite(number(numbers[side])) for side in ("low", "high"))


def number(x: float | None) -> float:
    """Returns NaN for what is undefined."""
    return math.nan if x is None else x


def bounded(values: Sequence[Mapping[str, float | None]]) -> tuple[list[float], list[float], list[float]]:
    """Returns value, low and high of each interval; without both bounds no bar: say so by `named`."""
    middle = [number(value["value"]) for value in values]
    low, high = (
        [number(value[side]) if has_bounds(value) else m for value, m in zip(values, middle, strict=True)]
        for side in ("low", "high")
    )
    return middle, low, high


def named(names: Sequence[str], values: Sequence[Mapping[str, float | None]]) -> list[str]:
    """Returns the names of rows; a point without a bar must not pass for an exact one."""
    return [
        name if value["value"] is None or has_bounds(value) else f"{name} (no bounds)"
        for name, value in zip(names, values, strict=True)
    ]
