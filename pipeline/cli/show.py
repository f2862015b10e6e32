"""`vdapo show`: the rows of a stage's table; rollouts as dialogues."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.text import Text

from pipeline.artifacts import ledger
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.disk import inside
from pipeline.artifacts.manifest import read_manifest, read_plan
from pipeline.errors import ArtifactError, ConfigError
from pipeline.runs import MAIN_CHAIN
from pipeline.schema import read_parquet
from pipeline.text import visible


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("stage_dir", metavar="RUN_DIR/STAGE", type=Path)
    parser.add_argument("--table", help="default: the stage's first table")
    parser.add_argument("--rows", type=int, default=3, help="how many (default 3)")


def run(options: argparse.Namespace) -> int:
    """Prints the first rows of a table of a stage; committed shards if it is not complete. Returns 0."""
    if options.rows < 1:
        raise ConfigError(f"--rows is {options.rows}; allowed: 1 or more")
    console, stage_dir = Console(), options.stage_dir.resolve()  # "." says not which stage it is
    tables, report = _contents(stage_dir)
    for line in report.get("opening", []):
        _print(console, str(line))
    if not tables and options.table is None:
        if "opening" not in report:
            text = json.dumps(report, indent=1, ensure_ascii=False)
            said = f"report.json says: {text}" if report else "and no report.json yet"
            _print(console, f"{stage_dir} has no tables; {said}")
        return 0
    name = options.table or next(iter(tables))
    if name not in tables:
        raise ConfigError(f"{stage_dir} has no table {name!r}; it has: {', '.join(tables) or 'none'}")
    table = tables[name](name)
    _print(console, f"{name}: {table.num_rows} rows; tables here: {', '.join(tables)}", "bold")
    for number, row in enumerate(table.slice(0, min(options.rows, table.num_rows)).to_pylist()):
        if name == "rollouts" and "steps" in tables:
            _dialogue(console, row)
            continue
        _print(console, f"row {number}", "bold")
        for key, value in row.items():
            _print(console, f"  {key}: {short(value)}")
    return 0


def _print(console: Console, text: str, style: str = "") -> None:
    """Prints what a model or a service may have said: no markup, no escapes."""
    console.print(Text(visible(text), style=style), soft_wrap=True)


def _contents(stage_dir: Path) -> tuple[dict[str, Callable[[str], pa.Table]], dict[str, Any]]:
    """Returns table name -> function that reads the table of a name; and the report of a complete stage."""
    if read_manifest(stage_dir) is not None:
        artifact = Artifact.open(stage_dir.parent, stage_dir.name)
        report = artifact.report if (stage_dir / "report.json").exists() else {}
        return dict.fromkeys(artifact.tables, artifact.table), report
    plan = read_plan(stage_dir)
    if plan is None:
        step = f"Run: make {stage_dir.name}" if stage_dir.name in MAIN_CHAIN else "Give RUN_DIR/STAGE"
        raise ArtifactError(f"{stage_dir} is missing or no stage of a run. {step}")
    entries = ledger.read(stage_dir)[0].values()

    def shards_of(name: str) -> pa.Table:
        parts = [read_parquet(inside(stage_dir, e.files[name]["path"])) for e in entries]
        if not parts:
            raise ArtifactError(f"{stage_dir}: no shard is committed yet. Run: make {stage_dir.name}")
        return pa.concat_tables(parts)

    return dict.fromkeys(plan["tables"], shards_of), {}


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
    """Prints a rollout as played."""
    kind = f"{'guided by feedback, ' if row['guided'] else ''}attempt {row['attempt']}, draw {row['draw']}"
    console.rule(Text(visible(f"rollout {row['rollout_id'][:12]} of task {row['task_id'][:12]} ({kind})")))
    for message in row["messages"]:
        calls = f" calls {message['tool_calls']}" if message["tool_calls"] else ""
        text = f"{message['role']}: {message['content'] or ''}{calls}"
        _print(console, text, _COLOURS.get(message["role"], ""))
    if row["feedback_in_context"]:
        _print(console, f"feedback in the prompt: {row['feedback_in_context']}", "magenta")
    for event in row["events"]:
        where = " ".join(filter(None, [event["target"], ", ".join(event["fields"]), event["detail"]]))
        _print(console, f"event in turn {event['turn']}: {event['code']} {where}".rstrip(), "blue")
    reward = "none" if row["reward"] is None else f"{row['reward']:g}"
    tokens = f"{sum(row['loss_mask'])} sampled tokens of {len(row['response_token_ids'])}"
    facts = f"reward {reward}, cost {row['cost']:g}, {row['finish_reason']}, {row['env_status']}, {tokens}"
    _print(console, facts, "bold")
    if row["feedback_text"]:
        _print(console, f"feedback ({row['feedback_source']}): {row['feedback_text']}", "magenta")
