"""A comparison in words: its page, and a line for each claim."""

from collections.abc import Mapping
from typing import Any

from pipeline.report import plots
from pipeline.report.comparison import MEASURES
from pipeline.report.page import Block, Drawing, Section, Table, Text, page
from pipeline.statistics import p_words
from pipeline.text import counted

HOW = (
    "Rollouts, tokens and seconds are those of all stages of a run, of refused ones too; only looks, which "
    "are evaluation, are free. A stage that several runs share was made once and counts in full in each. "
    "With the critic amortised, rollouts that the policy may learn from count, stored ones too, and none "
    "for values: the limit of a critic that serves ever more actors. Seconds are of runs that worked side "
    "by side; those of an actor are of its iterations, without its start-up. Success at equal budget is "
    "read at what the cheaper arm spent on average, linearly between looks; before the actor's first look "
    "a run has its starting policy. The cost to the threshold is the median over seeds of where the "
    "nearest curve that never falls reaches it. A run that never does counts as more than it spent: as "
    "just that in one bound of a ratio, as infinite in the other. Intervals hold 95 % of a bootstrap over "
    "seeds, then clusters of tasks, paired by seed and task, stretched for few seeds; p is two-sided, "
    "Student's by the spread of that bootstrap, Holm's over the arms. One seed has bounds over tasks and no "
    "p: two trainings of one arm differ, too. Seeds that share a base (sft.base) say nothing of others."
)
Interval = Mapping[str, float | None]


def claims_of(report: Mapping[str, Any], measure: str) -> list[str]:
    """Returns a line for each arm that the method was held against, with its intervals."""
    found, of, percent = report["measures"][measure], MEASURES[measure], 100 * report["threshold"]
    return [
        f"{report['method']} against {claim['against']}, {counted(len(claim['seeds']), 'seeds')}: "
        f"{_points(claim['difference'])} at {claim['budget']:,.0f} {of} "
        f"(p {_p(claim, 'difference')}); "
        f"{claim['against']} takes {_times(claim['ratio'])} as many {of} to {percent:g} % "
        f"(p {_p(claim, 'ratio')})"
        for claim in found["claims"]
    ]


def comparison_page(name: str, report: Mapping[str, Any]) -> str:
    """Returns report.html of a comparison, a pure function of its report."""
    primary, failed = next(iter(MEASURES)), report["failed"]
    seeds = max((len(arm["seeds"]) for arm in report["arms"].values()), default=0)
    ended = f"{counted(len(failed), 'runs')} came to no end: {', '.join(failed)}."
    if left_out := report["left_out"]:
        ended += f" No figure has {', '.join(left_out)}: nobody looked at the policy that they had."
    opening: list[Block] = [
        *([Text(ended, "fail")] * bool(failed)),
        *map(Text, claims_of(report, primary)),
        Text(
            f"{report['tasks_of_a_look']} tasks in each look, {counted(seeds, 'seeds')} an arm at most.",
            "note",
        ),
    ]
    why = Table(("run", "why it ended"), tuple(failed.items()))
    return page(
        f"Comparison {name}",
        [
            Section(f"What {report['method']} has over the other arms", [*opening, why]),
            *(_of_measure(report, measure) for measure in MEASURES),
            Section("The arms", [_arms(report), _spending(report)]),
            Section("How this is measured", [Text(HOW, "note")]),
        ],
    )


def _of_measure(report: Mapping[str, Any], measure: str) -> Section:
    found, of, threshold = report["measures"][measure], MEASURES[measure], report["threshold"]
    names = tuple(found["arms"])
    svg = plots.curves(
        *(measure, found["curves"], names), x=measure, y_label="success (%)", level=threshold, labels=MEASURES
    )
    arms = []
    for arm, own in found["arms"].items():
        never = sum(cost is None for cost in own["cost_of_each"].values())
        cost = _number(own["cost_to_threshold"], f"> {own['cost_at_least']:,.0f}")
        arms.append((arm, _share(own["success_at_budget"]), cost, str(never), f"{own['spent']:,.0f}"))
    claims = []
    for claim in found["claims"]:
        gap, ratio = claim["difference"], claim["ratio"]
        p = [_p(claim, part) for part in ("difference", "ratio")]
        claims.append((claim["against"], f"{claim['budget']:,.0f}", _points(gap), p[0], _times(ratio), p[1]))
    to, at = f"{of} to {100 * threshold:g} %", f"success at {found['budget']:,.0f}"
    against = (f"{report['method']} against", f"at {of}", "more success", "p", f"ratio of {to}", "p")
    return Section(
        f"By {of}",
        [
            Drawing(svg, f"Mean success over seeds by {of}, with 95 % bands; the line is the threshold."),
            Table(("arm", at, to, "seeds that never reach it", "spent"), tuple(arms)),
            Table(against, tuple(claims), f"Of both {report['method']} is the first, or the divisor."),
        ],
    )


def _arms(report: Mapping[str, Any]) -> Table:
    rows = []
    for arm, own in report["arms"].items():
        spreads = [_spread(own[name]) for name in ("spread_over_seeds", "spread_over_training")]
        rows.append((arm, str(len(own["seeds"])), _share(own["success_at_the_end"]), *spreads))
    return Table(
        ("arm", "seeds", "success at the end", "spread over seeds", "spread over training"),
        tuple(rows),
        "Spreads are standard deviations in points: of success at the end over seeds; of the mean training "
        "return between two looks around its trend.",
    )


def _spending(report: Mapping[str, Any]) -> Table:
    rows = tuple(
        (arm, stage, *(f"{cost[name]:,.0f}" for name in ("rollouts", "tokens", "seconds")))
        for arm, own in report["arms"].items()
        for stage, cost in own["spending"].items()
    )
    return Table(
        ("arm", "stage", "rollouts", "tokens", "seconds"), rows, "What a run pays for, mean over seeds."
    )


def _p(claim: Mapping[str, Any], part: str) -> str:
    """Returns Holm's p of a claim; a single seed has none, since two trainings of one arm differ, too."""
    return p_words(claim[part]["p_holm"]) if len(claim["seeds"]) > 1 else "unknown of one seed"


def _number(value: float | None, otherwise: str, digits: int = 0) -> str:
    return otherwise if value is None else f"{value:z,.{digits}f}"


def _share(interval: Interval) -> str:
    """Returns a success with its bounds in percent."""
    value, low, high = ("-" if x is None else f"{100 * x:.1f}" for x in map(interval.get, _PARTS))
    return f"{value} [{low}, {high}] %"


def _spread(deviation: float | None) -> str:
    return "-" if deviation is None else f"{100 * deviation:.1f}"


def _points(interval: Interval) -> str:
    """Returns a difference of successes in points, with its bounds."""
    value, low, high = ("-" if x is None else f"{100 * x:+z.1f}" for x in map(interval.get, _PARTS))
    return f"{value} points [{low}, {high}]"


def _times(ratio: Interval) -> str:
    """Returns a ratio with its bounds; one that censored runs leave open says on which side."""
    value, low, high = (_number(ratio[name], "-", 2) for name in _PARTS)
    bounds = "" if low == high == "-" else f" [{low}, {high}]"
    if ratio["value"] is not None:
        return f"{value} times{bounds}"
    if ratio["at_least"]:
        return f"at least {ratio['at_least']:.2f} times{bounds}"
    if ratio["at_most"] is not None:
        return f"at most {ratio['at_most']:.2f} times{bounds}"
    return "an unknown number of times"


_PARTS = ("value", "low", "high")
