"""What dpo says of itself: pairs, and how well held-out ones are told apart, by what their answers share."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.report import Drawing, Section, Table, Text, Tiles, page, plots
from pipeline.types import Pair
from stages.wiring.epochs import Trained
from stages.wiring.preference_data import counts_of

KINDS = ("all", "same_prompt", "other_prompts")
"""What looks tell apart: the reward that a policy stands for is compared fairly after one prompt alone."""


def dpo_report(
    pairs: Sequence[Pair], trained: Trained[dict[str, Any]], *, beta: float, mu: float
) -> dict[str, Any]:
    """Returns report.json of the stage."""
    training = [pair for pair in pairs if not pair.held_out]
    return {
        "beta": beta,
        "mu": mu,
        "pairs": counts_of(pairs),
        "tokens": sum(sum(a.loss_mask) for pair in training for a in (pair.chosen, pair.rejected)),
        "updates": trained.kept,
        "updates_taken": trained.num_updates,
        "looks": trained.looks,
        "ended_by_itself": trained.ended_by_itself,
    }


def dpo_page(report: Mapping[str, Any]) -> str:
    """Returns report.html of the stage, a pure function of the report."""
    train, held_out, looks = report["pairs"]["train"], report["pairs"]["held_out"], report["looks"]
    best = next(look for look in looks if look["update"] == report["updates"])
    others = sum(train.values()) - train.get("prompt", 0)
    tiles = Tiles(
        (
            (f"{sum(train.values()):,}", "pairs trained on"),
            (f"{others:,}", "of these after prompts that differ"),
            (f"{sum(held_out.values()):,}", "pairs of held-out clusters"),
            (f"{report['tokens']:,}", f"tokens of answers, {report['updates_taken']} updates"),
        )
    )
    ended = "no lower loss came" if report["ended_by_itself"] else "dpo.max_epochs was reached"
    words = (
        f"On held-out pairs the loss was {looks[0]['all']['loss']:.4f} at the start and "
        f"{best['all']['loss']:.4f} after epoch {best['epoch']}, whose weights are kept; the chosen answer "
        f"was ahead in {best['all']['accuracy']:.0%}. Training ended since {ended}."
    )
    shared = [
        (name, f"{train.get(name, 0):,}", f"{held_out.get(name, 0):,}")
        for name in ("prompt", "task", "similar")
    ]

    def curve(kind: str, measure: str) -> str:
        return f"{kind.replace('_', ' ')} {measure}"

    entries = [
        {"epoch": look["epoch"]}
        | {curve(kind, name): x for kind in KINDS if look[kind] for name, x in look[kind].items()}
        for look in looks
    ]

    def drawn(measure: str, label: str, caption: str) -> Drawing:
        names = tuple(curve(kind, measure) for kind in KINDS)
        return Drawing(plots.curves(measure, entries, names, x="epoch", y_label=label), caption)

    return page(
        "Direct preference optimisation",
        [
            Section(
                "What it learned from",
                [tiles, Table(("answers share", "trained on", "held out"), tuple(shared))],
            ),
            Section(
                f"How it learned: beta {report['beta']:g}, mu {report['mu']:g}",
                [
                    Text(words),
                    drawn("loss", "nats", "Loss of held-out pairs."),
                    drawn("accuracy", "share (%)", "Pairs whose chosen answer is ahead of the rejected one."),
                    drawn(
                        "chosen_log_ratio",
                        "nats",
                        "Log-ratio of chosen answers to the reference: below 0 they got less probable.",
                    ),
                ],
            ),
        ],
    )
