"""A run's summary, printed and as a page."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline.artifacts.metrics import read_metrics
from pipeline.report import Drawing, Section, Tiles, page
from pipeline.report import Table as PageTable
from pipeline.report.plots import Line, lines
from stages.wiring.summary import CRITIC, MEASURES

HEADER = ("", "start", "actor", "gain", "95 %")
CURVES = {
    "training tasks, first try": "rollouts/first_try",
    "training tasks, with feedback": "rollouts/with_feedback",
    "held-out val, first try": "val/first_try",
}


def percent(number: float | None) -> str:
    """Returns a share as text in percent."""
    return "-" if number is None else f"{100 * number:.1f}"


def rows_of(summary: dict[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """Returns the printed table's rows: measure, start, actor, gain in points, 95 % interval."""
    named = [(text, summary[measure]) for measure, text in MEASURES.items()]
    named += [
        (f"{name.replace('_', ' ')}, first try", part)
        for name, part in summary["by_slice"].items()
        if name.startswith(("test_", "level"))
    ]
    return [
        (
            text,
            percent(part["start"]),
            percent(part["actor"]),
            "-" if part["gain"] is None else f"{100 * part['gain']:+.1f}",
            f"[{percent(part['interval'][0])}, {percent(part['interval'][1])}]",
        )
        for text, part in named
    ]


def share(part: dict[str, Any]) -> str:
    """Returns a measure of the critic with its interval as text; `-` where undefined."""
    value, low, high = ("-" if x is None else f"{x:.2f}" for x in (part["value"], *part["interval"]))
    return f"{value} [{low}, {high}]"


def gate_words(critic: dict[str, Any]) -> str:
    """Returns the verdict of the critic's gate and what it left open."""
    left = critic["not_measured"]
    return critic["gate"] + (f" (not measured: {', '.join(left)})" if left else "")


def print_summary(summary: dict[str, Any], console: Console) -> None:
    """Prints what was won, how good the critic is, and what it cost."""
    table = Table(title=f"Held-out success in %, seed {summary['seed']}", title_justify="left")
    for name in HEADER:
        table.add_column(name, justify="right" if name else "left")
    for row in rows_of(summary):
        table.add_row(*row)
    console.print(table)
    said, budget = [], summary["budget"]
    if critic := summary["critic"]:
        skills = [name for name in CRITIC if name.startswith("skill_vs_")]
        words = ", ".join(f"{name.removeprefix('skill_vs_')} {share(critic[name])}" for name in skills)
        said.append(f"Critic: gate {gate_words(critic)}; Brier skill against {words}")
    said.append(
        f"Budget: {budget['rollouts']:,} rollouts, {budget['tokens']:,} sampled tokens, "
        f"{budget['updates']} updates; {summary['minutes']:.1f} minutes"
    )
    for line in said:
        console.print(line, soft_wrap=True, highlight=False)


def page_of(run_dir: Path, summary: dict[str, Any]) -> str:
    """Returns summary.html: what was won, the learning curves and the critic, one offline page."""
    looks = [e for e in read_metrics(run_dir / "actor" / "metrics.jsonl") if "rollouts/first_try" in e]
    curves = []
    for name, key in CURVES.items():
        if points := [e for e in looks if isinstance(e.get(key), float)]:
            curves.append(Line(name, [e["iteration"] for e in points], [100 * e[key] for e in points]))
    success = lines("success", curves, x_label="iteration", y_label="success in %")
    sft = [e for e in read_metrics(run_dir / "sft" / "metrics.jsonl") if "cross_entropy" in e]
    imitation = Line("", [e["update"] for e in sft], [e["cross_entropy"] for e in sft])
    loss = lines("imitation", [imitation], x_label="update", y_label="cross-entropy, nats per token")
    rows = rows_of(summary)
    won = Tiles(tuple((f"{start} to {actor} %", text) for text, start, actor, _, _ in rows))
    table = PageTable(HEADER, tuple(rows), "Success in %; intervals are bootstraps over clusters.")
    learned = (
        Drawing(success, "The actor, iteration by iteration."),
        Drawing(loss, "The start, by imitation."),
    )
    sections = [
        Section("What was won on held-out tasks", (won, table)),
        Section("How it was learned", learned),
    ]
    if critic := summary["critic"]:
        found = PageTable(
            ("", "value [95 %]"),
            tuple((text, share(critic[name])) for name, text in CRITIC.items()),
            f"Gate: {gate_words(critic)}. The whole audit: critic_report/report.html.",
        )
        sections.append(Section("Critic", (found,)))
    return page(f"Run {run_dir.name}", sections)
