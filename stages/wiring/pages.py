"""A run's summary, printed and as a page."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from env.feedback_tool.measures import MEASURES as CALLS
from pipeline.cli.tables import figures_table
from pipeline.report import Section, Table, Tiles, page, readings
from stages.wiring.actor_curves import learning_curve, reliance_curve, spent_curve
from stages.wiring.summary import CRITIC, MEASURES
from stages.wiring.summary_drawings import budget_section, opponents_section, success_section

HEADER = ("", "start", "actor", "gain", "95 %")


def percent(number: float | None) -> str:
    """Returns a share as text in percent."""
    return "-" if number is None else f"{100 * number:z.1f}"


def gain_words(value: float | None, low: float | None, high: float | None) -> tuple[str, str]:
    """Returns a gain in points, and its interval in percent."""
    bounds = "no bounds" if None in (low, high) else f"[{percent(low)}, {percent(high)}]"
    return "-" if value is None else f"{100 * value:+z.1f}", bounds


def rows_of(summary: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
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
            *gain_words(part["gain"], *part["interval"]),
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


def calls_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns what calls for feedback came to, in %: measure, start, actor; nothing where nobody can call."""
    asked = summary.get("feedback_tool")
    if not asked:
        return []
    first, last = asked["start"], asked["actor"]
    return [
        (text, percent(first[name]["value"]), percent(last[name]["value"])) for name, text in CALLS.items()
    ]


def events_section(events: Mapping[str, Mapping[str, Any]]) -> Section:
    """Returns which events first tries have, before and after training, what changed most first."""
    codes = sorted(events, key=lambda code: (-abs(events[code]["gain"]["value"] or 0.0), code))
    rows = []
    for code in codes:
        gain = events[code]["gain"]
        shares = [percent(events[code][who]["value"]) for who in ("start", "actor")]
        rows.append((code, *shares, *gain_words(gain["value"], gain["low"], gain["high"])))
    caption = "In % of first tries at temperature 1 that have such an event, whether they succeed or not."
    return Section("What happened on first tries", (Table(HEADER, tuple(rows), caption),))


def print_summary(summary: Mapping[str, Any], console: Console) -> None:
    """Prints what was won, how good the critic is, and what it cost."""
    table = figures_table("", HEADER[1:], f"Held-out success in %, seed {summary['seed']}")
    for row in rows_of(summary):
        table.add_row(*row)
    console.print(table)
    budget = summary["budget"]
    said = [
        f"Budget: {budget['rollouts']:,} rollouts, {budget['tokens']:,} sampled tokens, "
        f"{budget['updates']} updates; {summary['minutes']:.1f} minutes"
    ]
    said += [f"Feedback as a tool, {text}: {first} -> {last} %" for text, first, last in calls_rows(summary)]
    if critic := summary["critic"]:
        skills = [name for name in CRITIC if name.startswith("skill_vs_")]
        words = ", ".join(f"{name.removeprefix('skill_vs_')} {share(critic[name])}" for name in skills)
        said.insert(0, f"Critic: gate {gate_words(critic)}; Brier skill against {words}")
    console.print("\n".join(said), soft_wrap=True, highlight=False)


def summary_page(
    name: str,
    summary: Mapping[str, Any],
    actor: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    comparison: Mapping[str, Any] | None = None,
) -> str:
    """Returns summary.html of a run: what was won, how, at what cost, against whom, and the critic.

    `summary` is summary.json, `actor` and `evaluation` are the reports of these stages, `comparison` that of
    a comparison in this run, if there is one.
    """
    rows = rows_of(summary)
    won = Tiles(tuple((f"{start} to {end} %", text) for text, start, end, _, _ in rows))
    table = Table(HEADER, tuple(rows), "Success in %; intervals are bootstraps over clusters, none of few.")
    sections = [
        Section("What was won on held-out tasks", (won, table)),
        success_section(evaluation["measures"]),
        Section("How it was learned", (learning_curve(actor), spent_curve(actor), reliance_curve(actor))),
        budget_section(summary),
    ]
    if events := evaluation.get("events"):
        sections.append(events_section(events))
    if comparison:
        sections.append(opponents_section(comparison))
    if calls := calls_rows(summary):
        caption = "In % of first tries, or of calls. Intervals: the report of the stage evaluation."
        sections.append(
            Section("Feedback as a tool", (Table(("", "start", "actor"), tuple(calls), caption),))
        )
    if critic := summary["critic"]:
        figures = {"value [95 %]": {measure: share(critic[measure]) for measure in CRITIC}}
        caption = f"Gate: {gate_words(critic)}. The whole audit: critic_report/report.html."
        sections.append(Section("Critic", (readings(figures, CRITIC, caption),)))
    return page(f"Run {name}", sections)
