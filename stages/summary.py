"""Writes data/<run>/summary.json and summary.html from the run's finished stages, and prints the table.

Not a stage: it only reads, so it can be run again at any time.

    make summary CONFIG=configs/demo.yaml
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from pipeline.artifacts import ledger
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.disk import check_folder
from pipeline.artifacts.manifest import read_manifest
from pipeline.artifacts.metrics import read_metrics
from pipeline.cli.runs import MAIN_CHAIN
from pipeline.config import load_config
from pipeline.errors import ArtifactError, explain
from pipeline.schema import read_parquet
from pipeline.tables import ROLLOUTS
from stages.settings import Config

SAMPLING = ("rollouts", "labels", "critic_report", "actor")  # what the method pays for; evaluation is free
REFRESHED = ("rollouts", "labels", "critic_report")  # of these, what a refresh of the critic pays for again
MEASURES = {
    "first_try": "first try, temperature 1",
    "greedy": "first try, greedy",
    "with_feedback": "with feedback",
}
UNSEEN = "test_unseen_company"
CRITIC_STAGES = ("rollouts", "labels", "critic", "critic_report")
SKILLS = ("skill_vs_constant", "skill_vs_task_rate", "skill_vs_position")
CRITIC = {
    "skill_vs_constant": "Brier skill against a constant",
    "skill_vs_task_rate": "Brier skill against the task's success rate",
    "skill_vs_position": "Brier skill against the position alone",
    "ev": "explained variance",
    "ev_within": "explained variance within rollouts",
}


def gained(comparison: dict[str, Any]) -> dict[str, Any]:
    """Returns one comparison of the evaluation in the summary's form."""
    gain = comparison["gain"]
    return {
        "start": comparison["start"]["value"],
        "actor": comparison["actor"]["value"],
        "gain": gain["value"],
        "interval": [gain["low"], gain["high"]],
        "tasks": comparison["tasks"],
        "rollouts": comparison["rollouts"],
    }


def with_interval(measure: dict[str, Any]) -> dict[str, Any]:
    """Returns one measure of the critic report in the summary's form."""
    return {"value": measure["value"], "interval": [measure["low"], measure["high"]]}


def critic_of(audit: dict[str, Any]) -> dict[str, Any]:
    """Returns what the critic report says, in the summary's form."""
    measures = audit["measures"]["bare"]
    return {
        **{name: with_interval(measures[name.replace("_vs_", "_over_")]) for name in CRITIC},
        "gate": audit["gate"]["verdict"],
        "not_measured": audit["gate"]["not_measured"],
    }


def sampled_in(tables: Iterable[pa.Table]) -> dict[str, int]:
    """Returns how many rollouts, and tokens of them, some tables of sampled rollouts hold."""
    columns = [table.column("loss_mask").combine_chunks() for table in tables]
    return {
        "rollouts": sum(map(len, columns)),
        "tokens": sum(int(masks.flatten().to_numpy().sum()) for masks in columns),
    }


def sampled_until_refused(run_dir: Path) -> list[pa.Table]:
    """Returns what a refresh sampled that gave no critic: stage by stage, as far as each came.

    Raises:
        ArtifactError: the run is gone.
    """
    tables = [Artifact.open(run_dir, REFRESHED[0]).table("rollouts")]
    if not (run_dir / REFRESHED[1]).is_dir():  # it refuses nothing before it has a folder
        raise ArtifactError(f"{run_dir / REFRESHED[1]} is missing, so nobody knows what this refresh cost")
    for stage in REFRESHED[1:]:
        folder = run_dir / stage
        if read_manifest(folder):
            tables.append(Artifact.open(run_dir, stage).table("rollouts"))
        else:
            shards = ledger.read(folder)[0].values()
            tables += [read_parquet(folder / s.files["rollouts"]["path"], ROLLOUTS) for s in shards]
    return tables


def budget_of(run_dir: Path, artifacts: dict[str, Artifact]) -> dict[str, Any]:
    """Returns what was sampled to train: tokens, rollouts, updates; by stage as well.

    A refreshed critic cost another such chain: its sampling counts as `refresh`.

    Raises:
        ArtifactError: a run of a refresh is gone, so that nobody knows what it cost.
    """
    by_stage = {
        name: sampled_in([artifacts[name].table("rollouts")]) for name in SAMPLING if name in artifacts
    }
    refreshes = artifacts["actor"].report.get("refreshes", [])
    refused = artifacts["actor"].report.get("refused_refreshes", [])
    if refreshes or refused:
        by_stage["refresh"] = sampled_in(
            [
                *(
                    Artifact.open(run_dir / refresh, stage).table("rollouts")
                    for refresh in refreshes
                    for stage in REFRESHED
                ),
                *(table for refresh in refused for table in sampled_until_refused(run_dir / refresh)),
            ]
        )
    return {
        "tokens": sum(stage["tokens"] for stage in by_stage.values()),
        "rollouts": sum(stage["rollouts"] for stage in by_stage.values()),
        "updates": artifacts["actor"].report["updates"],
        "by_stage": by_stage,
    }


def summarise(run_dir: Path, *, with_critic: bool = True) -> dict[str, Any]:
    """Returns summary.json of a run with a complete chain; an actor trained without a critic needs none.

    Raises:
        ArtifactError: a stage is not complete, or they are of different seeds.
    """
    needed = [name for name in MAIN_CHAIN if with_critic or name not in CRITIC_STAGES]
    artifacts = {name: Artifact.open(run_dir, name) for name in needed}
    seeds = {name: artifact.manifest["settings"]["run"]["seed"] for name, artifact in artifacts.items()}
    if len(set(seeds.values())) > 1:
        raise ArtifactError(f"{run_dir}: stages of different seeds, {seeds}. Next: make all of one seed")
    measures = artifacts["evaluation"].report["measures"]
    minutes = {name: artifact.manifest["wall_seconds"] / 60 for name, artifact in artifacts.items()}
    return {
        "seed": seeds["tasks"],
        "minutes": round(sum(minutes.values()), 2),
        **{measure: gained(measures[measure]["all"]) for measure in MEASURES},
        "unseen_companies": gained(measures["first_try"][UNSEEN])
        if UNSEEN in measures["first_try"]
        else None,
        "by_slice": {name: gained(comparison) for name, comparison in measures["first_try"].items()},
        "critic": critic_of(artifacts["critic_report"].report) if with_critic else None,
        "budget": budget_of(run_dir, artifacts),
        "minutes_by_stage": {name: round(value, 2) for name, value in minutes.items()},
    }


def percent(number: float | None) -> str:
    """Returns a share as text in percent."""
    return "-" if number is None else f"{100 * number:.1f}"


def rows_of(summary: dict[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """Returns the printed table's rows: measure, start, actor, gain in points, 95 % interval."""
    named = [(text, summary[measure]) for measure, text in MEASURES.items()]
    if summary["unseen_companies"]:
        named.append(("unseen companies, first try", summary["unseen_companies"]))
    named += [
        (f"{name}, first try", part) for name, part in summary["by_slice"].items() if name.startswith("level")
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
    table.add_column("")
    for name in ("start", "actor", "gain", "95 %"):
        table.add_column(name, justify="right")
    for row in rows_of(summary):
        table.add_row(*row)
    console.print(table)
    if critic := summary["critic"]:
        words = ", ".join(f"{name.removeprefix('skill_vs_')} {share(critic[name])}" for name in SKILLS)
        console.print(
            f"Critic: gate {gate_words(critic)}; Brier skill against {words}", soft_wrap=True, highlight=False
        )
    budget = summary["budget"]
    console.print(
        f"Budget: {budget['rollouts']:,} rollouts, {budget['tokens']:,} sampled tokens, "
        f"{budget['updates']} updates; {summary['minutes']:.1f} minutes",
        soft_wrap=True,
        highlight=False,
    )


def page_of(run_dir: Path, summary: dict[str, Any]) -> str:
    """Returns summary.html: the table and the learning curves, one offline page."""
    from pipeline.report.page import Drawing, Section, page
    from pipeline.report.page import Table as PageTable
    from pipeline.report.plots import Line, lines

    history = read_metrics(run_dir / "actor" / "metrics.jsonl")
    looks = [entry for entry in history if "rollouts/first_try" in entry]

    def curve(name: str, key: str) -> Line:
        points = [
            (entry["iteration"], 100 * entry[key]) for entry in looks if isinstance(entry.get(key), float)
        ]
        return Line(name, [x for x, _ in points], [y for _, y in points])

    curves = [
        curve("training tasks, first try", "rollouts/first_try"),
        curve("training tasks, with feedback", "rollouts/with_feedback"),
        curve("held-out val, first try", "val/first_try"),
    ]
    success = lines(
        "success",
        [line for line in curves if line.x],
        x_label="iteration",
        y_label="success in %",
    )
    sft = read_metrics(run_dir / "sft" / "metrics.jsonl")
    losses = [(entry["update"], entry["cross_entropy"]) for entry in sft if "cross_entropy" in entry]
    imitation = lines(
        "imitation",
        [Line("sft", [x for x, _ in losses], [y for _, y in losses])],
        x_label="update",
        y_label="cross-entropy in nats per token",
    )
    header = ("", "start", "actor", "gain", "95 %")
    table = PageTable(
        header, tuple(rows_of(summary)), "Success in %; intervals are bootstraps over companies."
    )
    sections = [
        Section("What was won on held-out tasks", (table,)),
        Section("Learning curves", (Drawing(success, "The actor, iteration by iteration."),)),
        Section("Starting policy", (Drawing(imitation, "Imitation of the demonstrations."),)),
    ]
    if critic := summary["critic"]:
        found = PageTable(
            ("", "value [95 %]"),
            tuple((text, share(critic[name])) for name, text in CRITIC.items()),
            f"Gate: {gate_words(critic)}. The whole audit: critic_report/report.html.",
        )
        sections.append(Section("Critic", (found,)))
    return page(f"Run {run_dir.name}", sections)


def main(argv: Sequence[str] | None = None) -> int:
    """Writes and prints the summary; returns the exit code."""
    parser = argparse.ArgumentParser(prog="summary", description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--run")
    options = parser.parse_intermixed_args(argv)
    run_dir = Path()
    try:
        named = [f"run.name={json.dumps(options.run)}"] if options.run else []
        config = load_config(Config, Path(options.config), [*options.overrides, *named])
        run_dir = Path(config.run.data_dir) / config.run.name
        check_folder(run_dir, f"run.data_dir = {config.run.data_dir}")
        summary = summarise(run_dir, with_critic=config.actor.credit.mode == "v_dapo")
        (run_dir / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        (run_dir / "summary.html").write_text(page_of(run_dir, summary), encoding="utf-8")
    except Exception as error:
        if not (explained := explain(error, run_dir)):
            raise
        print(f"summary: {explained[1]}", file=sys.stderr)
        return int(explained[0])
    console = Console()
    print_summary(summary, console)
    pages = [("Learning curves", "summary.html")]
    if summary["critic"]:
        pages.append(("Critic report", "critic_report/report.html"))
    for text, name in pages:
        console.print(f"{text}: {run_dir / name}", soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
