"""What the report opens with: the verdict and the key figures, in plain words."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from critics.report.gate import NOT_MEASURED, Condition, passed
from pipeline.statistics import Interval

MOST_REASONS = 3
"""Failed conditions that are told in full; gate.json and the page have all."""
MIN_SLICE_STATES = 30
"""Smaller slices are not called the weakest."""
SHARES = {
    "ev": "of the differences between states explained",
    "ev_within": "of those within one rollout (0: useless for steps)",
    "sign_agreement": "of clear steps seen in the right direction (a coin: 50 %)",
    "sibling_pairs": "of clearly different next steps put in the right order (a coin: 50 %)",
    "skill_over_task_rate": "less error than the bare task success rate",
}


def opening_of(
    conditions: Sequence[Condition], policy_digest: str, slices: Sequence[Mapping[str, Any]]
) -> str:
    """Returns the first paragraph: the verdict, why it fails if it does, and where the critic is weakest."""
    parts = [
        f"{'PASS' if passed(conditions) else 'FAIL'}. This critic estimates the chance that policy "
        f"{policy_digest[:12]} solves a task of an unseen cluster from a given step. It does not judge "
        "whether steps are correct."
    ]
    if failed := [c for c in conditions if c.passed is False]:
        more = f"; and {len(failed) - MOST_REASONS} more" if len(failed) > MOST_REASONS else ""
        told = "; ".join(f"{c.name}, {c.reason}" for c in failed[:MOST_REASONS])
        parts.append(f"It fails because: {told}{more}.")
    if names := [c.name for c in conditions if c.passed == NOT_MEASURED]:
        parts.append(f"Not measured: {', '.join(names)}.")
    if weakest := _weakest(slices):
        parts.append(f"Weakest: {weakest}.")
    return " ".join(parts)


def findings(
    measures: Mapping[str, Interval], visible: float | None, visible_alone: float | None = None
) -> list[tuple[str, str]]:
    """Returns (figure, what it says) of the measures of judged bare states; undefined ones are left out.

    `visible` is EV_within of trees on all that the dialogue shows and the critic, `visible_alone` on the
    dialogue alone, beside a critic that is told more; None without them.
    """
    found = []
    for name, words in SHARES.items():
        if name not in measures or math.isnan((measured := measures[name]).value):
            continue
        if name == "ev_within" and visible is not None:
            # Trees are one way to use what is visible, so the critic itself may show more.
            words += f"; visible is {_percent(max(visible, measured.value))} % or more"
        if name == "ev_within" and visible_alone is not None:
            words += f"; it is told verdicts, trees on the dialogue alone explain {_percent(visible_alone)} %"
        bounds = "no bounds"
        if math.isfinite(measured.low) and math.isfinite(measured.high):
            bounds = f"{_percent(measured.low)}, {_percent(measured.high)}"
        found.append((f"{_percent(measured.value)} %", f"[{bounds}] {words}"))  # directly behind the figure
    ece, floor = measures["ece"].value, measures["ece_floor"].value
    if math.isfinite(ece):
        frozen = 100 * abs(measures["level_bias"].value)
        found.append(
            (
                f"{100 * ece:.0f} points",
                f"off, its percentages on average once their level is right; as frozen it is off by "
                f"{frozen:.0f} (a perfect critic would show {100 * floor:.0f} here)",
            )
        )
    return found


def _percent(share: float) -> str:
    return "below -100" if share < -1 else f"{100 * share:z.0f}"  # how far below says nothing more


def _weakest(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the slice of a useful size in which values are farthest from the truth, in words.

    Not the one that explains least: where states hardly differ, there is little to explain, and nearly any
    error is more than that. Nor one that is alone of its kind: it is all that was audited.
    """
    kinds = Counter(row["kind"] for row in rows)
    useful = [
        row
        for row in rows
        if kinds[row["kind"]] > 1
        and row["num_states"] >= MIN_SLICE_STATES
        and math.isfinite(row["rmse"].value)
    ]
    if len(useful) < 2:
        return None
    row = max(useful, key=lambda row: row["rmse"].value)
    place = "the {} part of the budget" if row["kind"] == "position" else row["kind"] + " {}"
    return f"{place.format(row['name'])}, where values are {100 * row['rmse'].value:.0f} points off the truth"
