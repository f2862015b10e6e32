"""Promotion's page: what was decided, on what traffic, and how often the rule errs."""

from collections.abc import Mapping
from typing import Any

from pipeline.promotion import LOOK, LOOKS, ONE_IN, PROMOTE_AT, ROLL_BACK_AT, WORSE, simulated_rates
from pipeline.report import Section, Table, Text, Tiles, page
from pipeline.report.page import Tone

DIFFERENCES = (-0.2, -0.13, -0.1, -0.05, 0.0, 0.05, 0.1, 0.13, 0.2)
WORDS: dict[str, tuple[str, Tone]] = {
    "promote": ("The candidate is served from now on.", "pass"),
    "roll_back": ("The candidate is refused: all traffic goes to the policy that was served before.", "fail"),
    "continue": ("Neither was clear up to the last look: the policy that was served before stays.", "note"),
}


def promotion_page(report: Mapping[str, Any]) -> str:
    """Returns report.html of a promotion, a pure function of the report."""
    last, (words, tone) = report["looks"][-1], WORDS[report["decision"]]
    tiles = Tiles(
        (
            (report["decision"].replace("_", " "), f"after look {len(report['looks'])} of {LOOKS}"),
            (f"{last['better']:.3f}", f"P(candidate better); promoted from {PROMOTE_AT:g}"),
            (
                f"{last['worse']:.3f}",
                f"P(candidate below {WORSE:g} of the baseline); rolled back from {ROLL_BACK_AT:g}",
            ),
        )
    )
    means = [row["reward_sum"] / max(1, row["rollouts"]) for row in report["monitoring"]]
    rows = tuple(
        (
            row["arm"],
            row["policy_digest"][:12],
            *(f"{row[name]:,}" for name in ("rollouts", "failed")),
            *map(_share, (mean, row["success"])),
            f"{row['unsafe']:,}",
            _share(row["satisfaction"]),
        )
        for row, mean in zip(report["monitoring"], means, strict=True)
    )
    header = ("arm", "policy", "graded", "not gradable", "mean reward", "success", "unsafe", "satisfaction")
    rate = means[0]  # of the baseline
    rates = tuple(
        (f"{100 * difference:+.0f}", *map(_share, simulated_rates(rate + difference, rate).values()))
        for difference in DIFFERENCES
        if 0 <= rate + difference <= 1
    )
    rule = (
        f"One in {ONE_IN} requests goes to the candidate. After every {LOOK} rollouts it is promoted if "
        f"P(candidate better) is at least {PROMOTE_AT:g}, and rolled back if P(candidate below {WORSE:g} of "
        f"the baseline) is at least {ROLL_BACK_AT:g}, by Beta posteriors; what nobody could grade counts "
        "against either, as failed of one arm and as a success of the other. "
        "That speaks of these held-out tasks; of other clusters, the intervals of the stage evaluation do."
    )
    caption = (
        f"How often the rule says what, simulated with a fixed seed: the baseline succeeds in {rate:.0%}, "
        f"the candidate truly differs by so many points on these tasks, and there are up to {LOOKS} looks."
    )
    return page(
        f"Promotion, round {report['round']}",
        [
            Section("Decision", [Text(words, tone), tiles, Text(rule)]),
            Section("Traffic", [Table(header, rows)]),
            Section(
                "How often this rule errs",
                [Table(("points of difference", "promote", "roll back", "continue"), rates, caption)],
            ),
        ],
    )


def _share(number: float | None) -> str:
    return "-" if number is None else f"{number:.1%}"
