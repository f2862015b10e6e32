"""Promotion's page: what was decided, on what traffic, and how often the rule errs."""

from collections.abc import Mapping
from typing import Any

from pipeline.promotion import (
    CANDIDATE_SHARE,
    LOOK,
    MIN_ROLLOUTS,
    PROMOTE_AT,
    ROLL_BACK_AT,
    WORSE,
    Arm,
    resolved,
)
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
    last, arms = report["looks"][-1], {name: Arm(**of) for name, of in report["arms"].items()}
    words, tone = WORDS[report["decision"]]
    tiles = Tiles(
        (
            (
                report["decision"].replace("_", " "),
                f"after look {len(report['looks'])} of {report['looks_planned']}",
            ),
            (f"{last['better']:.3f}", f"P(candidate better); promoted from {PROMOTE_AT:g}"),
            (
                f"{last['worse']:.3f}",
                f"P(candidate below {WORSE:g} of the baseline); rolled back from {ROLL_BACK_AT:g}",
            ),
        )
    )
    rows = tuple(
        (
            row["arm"],
            row["policy_digest"][:12],
            f"{row['rollouts']:,}",
            f"{row['failed']:,}",
            _share(arms[row["arm"]].rewards / max(1, row["rollouts"])),
            _share(row["success"]),
            f"{row['unsafe']:,}",
            _share(row["satisfaction"]),
        )
        for row in report["monitoring"]
    )
    header = ("arm", "policy", "graded", "not gradable", "mean reward", "success", "unsafe", "satisfaction")
    baseline = arms["baseline"]
    rate = baseline.rewards / max(1, baseline.rollouts)
    rates = tuple(
        (
            f"{100 * difference:+.0f}",
            *(f"{of[verdict]:.1%}" for verdict in ("promote", "roll_back", "continue")),
        )
        for difference, of in resolved(rate, report["looks_planned"], DIFFERENCES)
    )
    rule = (
        f"One in {round(1 / CANDIDATE_SHARE)} requests goes to the candidate. After every {LOOK} rollouts, "
        f"with {MIN_ROLLOUTS} of each arm or more, it is promoted if P(candidate better) is at least "
        f"{PROMOTE_AT:g}, and rolled back if P(candidate below {WORSE:g} of the baseline) is at least "
        f"{ROLL_BACK_AT:g}, by Beta posteriors."
    )
    caption = (
        f"How often the rule says what, simulated with a fixed seed: the baseline succeeds in {rate:.0%}, "
        "the candidate truly differs by so many points, and there are up to "
        f"{report['looks_planned']} looks."
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
