"""The stored phase's page: what it learned from, and what held-out rollouts gained."""

import math
from collections.abc import Mapping
from typing import Any

from pipeline.report import Drawing, Section, Table, Text, Tiles, page, plots
from pipeline.statistics import Interval, interval_words
from stages.wiring.refusals import override_words

_WORDS = {
    "probability": (
        "Tokens of {:,} successes of clusters that are not trained on had a mean probability of",
        "probability of a token",
        "Mean probability of a token of held-out successes.",
    ),
    "gain": (
        "Minus the loss of {:,} rollouts or steps of clusters that are not trained on was",
        "minus the loss",
        "Minus the loss of held-out rollouts: mean advantage by clipped ratios, or minus the squared error.",
    ),
}
"""Measure that ended training -> its sentence, the plot's axis and caption."""


def stored_page(report: Mapping[str, Any]) -> str:
    """Returns report.html of the stored phase, a pure function of the report."""
    rows, looks = report["rows"], report["looks"]
    measure = report["measure"]
    first, kept = looks[0], next(look for look in looks if look["update"] == report["updates"])
    tiles = Tiles(
        (
            (f"{rows['bare']:,}", "bare rollouts or steps trained on"),
            (f"{rows['guided_stripped']:,}", "successes after feedback, on the bare prompt"),
            (f"{report['effective_tokens'] / report['tokens']:.0%}", "effective sample size, of tokens"),
            (f"{report['tokens_trained']:,}", f"tokens in {report['updates_taken']} updates"),
        )
    )
    left_out = [(reason.replace("_", " "), f"{number:,}") for reason, number in rows["left_out"].items()]
    told = [(word, f"{number:,}") for word, number in rows["told_words"].items()]
    ended = "looks after it are no better" if report["ended_by_itself"] else "stored.max_epochs was reached"
    sentence, label, caption = _WORDS[measure]
    words = (
        f"{sentence.format(rows['held_out'])} {first[measure]:.4f} at the start, {kept[measure]:.4f} after "
        f"epoch {kept['epoch']}, whose weights are kept. Training ended since {ended}."
    )
    svg = plots.curves("looks", looks, (measure,), x="epoch", y_label=label)
    stamp = report["critic_gate"]
    weak = "" if stamp is None else override_words(stamp, "stored.objective.on_weak_critic")
    compared = [(words.replace("_", " "), f"{number:,}") for words, number in rows["compared"].items()]
    return page(
        "Stored phase",
        [
            Section(
                "What it learned from",
                [
                    *([Text(weak, "fail")] * bool(weak)),
                    tiles,
                    Table(("left out", "rollouts"), tuple(left_out)),
                    Table(("what only feedback told", "rollouts that say it"), tuple(told)),
                    Table(("compared", "rollouts"), tuple(compared)),
                    Table(("critic of who was recorded, by outcomes", "Brier skill"), _skills(stamp or {})),
                ],
            ),
            Section(
                f"How it learned: {report['objective']}",
                [Text(words), Drawing(svg, caption)],
            ),
        ],
    )


def _skills(stamp: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Returns the measures of a critic that outcomes have judged, in words; none of another."""
    return tuple(
        (
            f"{name.replace('_', ' ')}, {stamp['rollouts']:,} rollouts",
            interval_words(Interval(*(math.nan if x is None else x for x in numbers.values())), 3),
        )
        for name, numbers in stamp.items()
        if name.startswith("skill_over_")
    )
