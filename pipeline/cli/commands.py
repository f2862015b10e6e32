"""`vdapo status|show|verify`: look at a run without changing it. `stages.command` adds `plan`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.artifacts import ledger
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.disk import inside
from pipeline.artifacts.lock import holder
from pipeline.artifacts.manifest import check_lineage, read_manifest, read_plan
from pipeline.errors import ArtifactError, ConfigError, ExitCode
from pipeline.ids import file_sha256
from pipeline.schema import read_parquet
from pipeline.tables import check_steps, rollouts_from
from pipeline.text import visible

JUDGED_BY = {"critic": "critic_report"}
"""Stages whose quality another stage tells; its first lines are shown with them."""
REFRESHES = "refresh"
"""Folder of a run that holds runs of their own: one for each critic that was made anew for an actor."""
MAIN_CHAIN = ("tasks", "sft", "rollouts", "labels", "critic", "critic_report", "actor", "evaluation")


def main(argv: Sequence[str] | None = None, *, others: Mapping[str, str] | None = None) -> int:
    """Returns the exit code of one command: 0, 2 for wrong usage, 3 for a missing or damaged artifact.

    Args:
        argv: the command line, without the program's name.
        others: commands that the caller sees to itself -> what --help says of them.
    """
    options = _parser(others or {}).parse_args(argv)
    console = Console()
    try:
        if options.command == "status":
            return status(console, options.run_dirs)
        if options.command == "show":
            return show(console, options.stage_dir, options.table, options.rows)
        return verify(console, options.run_dir)
    except (ArtifactError, ConfigError) as error:
        print(visible(f"vdapo: {error}"), file=sys.stderr)
        return int(error.code)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser(others: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vdapo", description="Look at runs, and ahead at what one takes.")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("status", help="what is done, stage by stage")
    one.add_argument(
        "run_dirs", metavar="RUN_DIR", nargs="*", type=Path, help="default: every run under data/"
    )
    two = commands.add_parser("show", help="the rows of a stage's table; rollouts as dialogues")
    two.add_argument(
        "stage_dir", metavar="RUN_DIR/STAGE", type=Path, help="a stage's name alone: of the only run in data/"
    )
    two.add_argument("--table", help="default: the stage's first table")
    two.add_argument("--rows", type=int, default=3, help="how many (default 3)")
    three = commands.add_parser("verify", help="every digest, schema, id and count of a run")
    three.add_argument("run_dir", metavar="RUN_DIR", type=Path)
    for name, text in others.items():
        commands.add_parser(name, help=text)
    return parser


# -- status ------------------------------------------------------------------------------------------------


def status(console: Console, run_dirs: Sequence[Path]) -> int:
    """Prints a table per run, its refreshes after it; returns 3 if a stage is damaged, else 0."""
    if not run_dirs:
        run_dirs = sorted(p for p in Path("data").glob("*") if p.is_dir() and not p.name.startswith("."))
        if not run_dirs:
            raise ArtifactError("no run under data/. Next: make demo, or vdapo status RUN_DIR")
    code = 0
    for run_dir in run_dirs:
        if not run_dir.is_dir():
            raise ArtifactError(f"{run_dir} is no folder; give that of a run, such as data/demo")
    for run_dir in [run for given in run_dirs for run in (given, *refreshes_of(given))]:
        table = Table(title=Text(visible(str(run_dir))), title_justify="left")
        for name in ("stage", "state", "items", "rows", "finished", "digest"):
            table.add_column(name, justify="right" if name in ("items", "rows") else "left")
        for stage in stages_of(run_dir):
            try:
                cells = _state(run_dir, stage)
            except ArtifactError as error:
                code, cells = int(error.code), ["damaged", "", "", "", ""]
                print(visible(f"vdapo: {error}"), file=sys.stderr)
            table.add_row(*(Text(visible(cell)) for cell in (stage, *cells)))
        console.print(table)
    return code


def stages_of(run_dir: Path) -> list[str]:
    """Returns the main chain's stages, then every other stage folder of a run."""
    others = sorted(
        path.name
        for path in run_dir.iterdir()
        if path.name not in MAIN_CHAIN
        and ((path / "plan.json").exists() or (path / "manifest.json").exists())
    )
    return [*MAIN_CHAIN, *others]


def refreshes_of(run_dir: Path) -> list[Path]:
    """Returns the runs inside a run that made a critic anew for its actor, in order."""
    return sorted(
        path
        for path in (run_dir / REFRESHES).glob("*")
        if any((path / stage / "plan.json").exists() for stage in MAIN_CHAIN)
    )


def _state(run_dir: Path, stage: str) -> list[str]:
    folder = run_dir / stage
    manifest = read_manifest(folder)
    running = f", running as pid {lease['pid']} on {lease['host']}" if (lease := holder(folder)) else ""
    if manifest is None:
        plan = read_plan(folder)
        if plan is None:
            return [("begun" if running else "absent") + running, "", "", "", ""]
        entries, _ = ledger.read(folder)
        parts = [(e.done, e.failed, e.skipped) for e in entries.values()]
        counts = ledger.Counts.of(plan["planned"], parts)
        ended = counts.done + sum(counts.failed.values()) + sum(counts.skipped.values())
        rows = _sum_rows((name, f["rows"]) for e in entries.values() for name, f in e.files.items())
        state = f"resumable, {len(entries)} of {plan['shards']} shards"
        return [state + running, f"{ended} of {counts.planned} {plan['unit']}", rows, "", ""]
    Artifact.open(run_dir, stage)
    state = "complete"
    try:
        check_lineage(run_dir, [stage])
    except ArtifactError:
        state = "stale: an input was made again"
    failed = sum(manifest["counts"]["failed"].values())
    items = f"{manifest['counts']['planned']} {manifest['unit']}" + (f", {failed} failed" if failed else "")
    rows = _sum_rows((name, facts["rows"]) for name, facts in manifest["tables"].items())
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(manifest["finished"]))
    return [state, items, rows, when, manifest["content_digest"][:8]]


def _sum_rows(pairs: Iterable[tuple[str, int]]) -> str:
    rows: dict[str, int] = {}
    for name, number in pairs:
        rows[name] = rows.get(name, 0) + number
    return "\n".join(f"{name} {number}" for name, number in rows.items())


# -- show --------------------------------------------------------------------------------------------------


def show(console: Console, stage_dir: Path, table_name: str | None, num_rows: int) -> int:
    """Prints the first rows of a table of a stage; committed shards if it is not complete. Returns 0."""
    if num_rows < 1:
        raise ConfigError(f"--rows is {num_rows}; allowed: 1 or more")
    stage_dir = _stage_dir(stage_dir)
    report = _report(stage_dir)
    opening = _opening(stage_dir) or report.get("opening", [])
    for line in [opening] if isinstance(opening, str) else opening:
        console.print(Text(visible(str(line))), soft_wrap=True)
    tables = _tables(stage_dir)
    if not tables and table_name is None:
        if not opening:
            text = json.dumps(report, indent=1, ensure_ascii=False)
            told = f"report.json says: {text}" if report else "and no report.json yet"
            console.print(Text(visible(f"{stage_dir} has no tables; {told}")), soft_wrap=True)
        return 0
    name = table_name or next(iter(tables))
    if name not in tables:
        raise ConfigError(f"{stage_dir} has no table {name!r}; it has: {', '.join(tables) or 'none'}")
    table = tables[name]()
    console.print(Text(f"{name}: {table.num_rows} rows; tables here: {', '.join(tables)}", style="bold"))
    head = table.slice(0, num_rows)
    if name == "rollouts" and "steps" in tables:
        for row in head.to_pylist():
            _dialogue(console, row)
    else:
        for number, row in enumerate(head.to_pylist()):
            console.print(Text(f"row {number}", style="bold"))
            for key, value in row.items():
                console.print(Text(f"  {key}: {short(value)}"), soft_wrap=True)
    return 0


def _stage_dir(given: Path) -> Path:
    """Returns the folder that is meant: as given, or that of a bare stage name in the only run with one."""
    given = Path(os.path.normpath(given))
    if given.exists() or given.name != str(given) or given.name not in MAIN_CHAIN:
        return given
    found = sorted(path for path in Path("data").glob(f"*/{given.name}") if path.is_dir())
    if len(found) > 1:
        names = ", ".join(map(str, found))
        raise ConfigError(f"{given.name} of which run? Give one of: {names}")
    return found[0] if found else given


def _opening(stage_dir: Path) -> str | list[str] | None:
    """Returns the first lines of the report that judges a complete stage as it is now; None without one."""
    judge = JUDGED_BY.get(stage_dir.name)
    manifest = read_manifest(stage_dir)
    judged = read_manifest(stage_dir.parent / judge) if judge else None
    if judge is None or manifest is None or judged is None:
        return None
    if judged["inputs"].get(stage_dir.name) != manifest["content_digest"]:
        return None  # of another critic
    opening: str | list[str] | None = Artifact.open(stage_dir.parent, judge).report.get("opening")
    return opening


def _absence(folder: Path) -> str:
    """Returns why a folder shows nothing, and what to do."""
    if folder.name in MAIN_CHAIN:
        return f"{folder} is missing or has not begun. Run: make {folder.name}, with its run's CONFIG and RUN"
    inside_it = [path for path in sorted(folder.glob("*")) if read_plan(path) or read_manifest(path)]
    if inside_it:
        return f"{folder} is a run. Give one of its stages: {', '.join(map(str, inside_it))}"
    return f"{folder} is no stage of a run. Stages of the main chain: {', '.join(MAIN_CHAIN)}"


def _report(stage_dir: Path) -> dict[str, Any]:
    """Returns what report.json holds; nothing if it is not there."""
    path = stage_dir / "report.json"
    if not path.is_file():
        return {}
    try:
        report = json.loads(path.read_bytes())
    except ValueError as error:
        raise ArtifactError(f"{path}: damaged ({error})") from None
    if not isinstance(report, dict):
        raise ArtifactError(f"{path}: damaged (a {type(report).__name__}, not a table)")
    return report


def _tables(stage_dir: Path) -> dict[str, Any]:
    """Returns table name -> function that reads it."""
    manifest = read_manifest(stage_dir)
    if manifest is not None:
        artifact = Artifact.open(stage_dir.parent, stage_dir.name)
        return {name: lambda name=name: artifact.table(name) for name in artifact.tables}
    plan = read_plan(stage_dir)
    if plan is None:
        raise ArtifactError(_absence(stage_dir))
    entries = ledger.read(stage_dir)[0].values()

    def shards_of(name: str) -> pa.Table:
        parts = [read_parquet(inside(stage_dir, e.files[name]["path"])) for e in entries]
        if not parts:
            raise ArtifactError(f"{stage_dir}: no shard is committed yet. Run: make {stage_dir.name}")
        return pa.concat_tables(parts)

    return {name: lambda name=name: shards_of(name) for name in plan["tables"]}


def short(value: Any, limit: int = 300) -> str:
    """Returns a value as one visible line; long ones are cut, and say how long they were.

    Example:
        >>> short([1] * 3), short("x" * 9, limit=4)
        ('[1, 1, 1]', 'xxxx… (9 characters)')
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = visible(text).replace("\n", "⏎")
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


_COLOURS = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}


def _dialogue(console: Console, row: dict[str, Any]) -> None:
    """Prints a rollout as played. What a model said passes Text and `visible`: no markup, no escapes."""
    kind = f"{'guided by feedback, ' if row['guided'] else ''}attempt {row['attempt']}, draw {row['draw']}"
    console.rule(Text(visible(f"rollout {row['rollout_id'][:12]} of task {row['task_id'][:12]} ({kind})")))
    for message in row["messages"]:
        role = str(message["role"])
        line = Text(f"{role}: ", style=f"bold {_COLOURS.get(role, '')}".strip())
        line.append(Text(visible(message["content"] or ""), style="not bold"))
        if message["tool_calls"]:
            line.append(Text(f" calls {visible(message['tool_calls'])}", style="not bold"))
        console.print(line, soft_wrap=True)
    if row["feedback_in_context"]:
        console.print(Text(f"feedback in the prompt: {visible(row['feedback_in_context'])}", style="magenta"))
    for event in row["events"]:
        where = " ".join(filter(None, [event["target"], ", ".join(event["fields"]), event["detail"]]))
        console.print(
            Text(visible(f"event in turn {event['turn']}: {event['code']} {where}".rstrip()), style="blue")
        )
    reward = "none" if row["reward"] is None else f"{row['reward']:g}"
    tokens = f"{sum(row['loss_mask'])} sampled tokens of {len(row['response_token_ids'])}"
    facts = f"reward {reward}, cost {row['cost']:g}, {row['finish_reason']}, {row['env_status']}, {tokens}"
    console.print(Text(visible(facts), style="bold"))
    if row["feedback_text"]:
        console.print(
            Text(visible(f"feedback ({row['feedback_source']}): {row['feedback_text']}"), style="magenta")
        )


# -- verify ------------------------------------------------------------------------------------------------


def verify(console: Console, run_dir: Path) -> int:
    """Checks all stages of a run and its refreshes to the last byte; returns 3 if one is wrong, else 0."""
    if not run_dir.is_dir():
        raise ArtifactError(f"{run_dir} is missing; give the folder of a run, such as data/demo")
    code = 0
    looked_at = 0
    for run in (run_dir, *refreshes_of(run_dir)):
        for stage in stages_of(run):
            folder = run / stage
            name = folder.relative_to(run_dir)
            try:
                done = _verify_stage(run, stage)
                if done is None:
                    continue
                looked_at += 1
                console.print(Text(visible(f"{name}: {done}")), soft_wrap=True)
            except ArtifactError as error:
                looked_at += 1
                code = int(ExitCode.ARTIFACT)
                console.print(Text(visible(f"{name}: WRONG: {error}"), style="red"), soft_wrap=True)
            except ValueError as error:
                looked_at += 1
                code = int(ExitCode.ARTIFACT)
                console.print(Text(visible(f"{name}: WRONG: {folder}: {error}"), style="red"), soft_wrap=True)
    if not looked_at:
        raise ArtifactError(f"{run_dir} holds no stage. Next: make tasks, or give the folder of a run")
    return code


def _verify_stage(run_dir: Path, stage: str) -> str | None:
    folder = run_dir / stage
    if read_manifest(folder) is not None:
        artifact = Artifact.open(run_dir, stage)
        artifact.verify()
        check_lineage(run_dir, [stage])
        if {"rollouts", "steps"} <= set(artifact.tables):
            check_steps(rollouts_from(artifact.table("rollouts"), artifact.table("steps")))
        files = artifact.manifest["files"]
        size = sum(facts["bytes"] for facts in files) / 1e6
        return f"complete and sound: {len(files)} files, {size:.1f} MB, content {artifact.content_digest[:8]}"
    plan = read_plan(folder)
    if plan is None:
        return None
    entries, warnings = ledger.read(folder)
    for entry in entries.values():
        for facts in entry.files.values():
            path = inside(folder, facts["path"])
            if not path.is_file() or file_sha256(path) != facts["sha256"]:
                raise ArtifactError(f"{path}: missing or damaged. Next: make {stage} SET=--repair")
            read_parquet(path)
    torn = f", {len(warnings)} torn ledger lines (their shards will be made again)" if warnings else ""
    return f"resumable and sound: {len(entries)} of {plan['shards']} shards{torn}"


if __name__ == "__main__":
    sys.exit(main())
