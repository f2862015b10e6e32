"""How fast `vdapo view` opens a run of 200,000 synthetic rollouts, in a real headless browser.

    python -m benchmarks.view            # some minutes and 3 GB; needs a Chromium on PATH
    python -m benchmarks.view --quick    # 2,000 rollouts: all of it works, nothing is judged

The tables are written as stages write them, with random tokens and texts; the manifests name sizes alone.
The server is a process of its own, by the command itself. Seconds are the browser's own, from the navigation
or the change of the address until the page says that it is ready.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks._browser import Browser, cpu_seconds
from benchmarks._results import Criteria, Row, measured, spread
from benchmarks._run import ROOT, Asked, Benchmark, main
from pipeline.artifacts.disk import sealed
from pipeline.artifacts.manifest import SCHEMA_VERSION
from pipeline.columns import ROLLOUTS, STEPS, TASKS, VALUES
from pipeline.schema import TableSpec, write_parquet

TURNS, STEP_TOKENS, REPLY_TOKENS, PROMPT_TOKENS = 4, 40, 24, 200
"""A rollout has as many steps as turns; its environment answers all but the last."""
RESPONSE = TURNS * STEP_TOKENS + (TURNS - 1) * REPLY_TOKENS
GROUP, TEXTS = 8, 20_000
VARIANT = "200,000 rollouts"


def lists(values: pa.Array, sizes: int | np.ndarray, rows: int) -> pa.Array:
    """Returns lists of these sizes, one after the other."""
    ends = np.concatenate([[0], np.cumsum(np.broadcast_to(sizes, rows))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), values)


def named(prefix: str, numbers: np.ndarray) -> pa.Array:
    """Returns ids of 32 characters, as stages have them."""
    return pa.array([f"{prefix}{number:031x}" for number in numbers.tolist()])


def sentences(draw: np.random.Generator) -> pa.Array:
    """Returns random texts of some 160 characters."""
    words = np.array(["".join(draw.choice(list("abcdefghijklmnopqrstuvwxyz"), 6)) for _ in range(2000)])
    return pa.array([" ".join(words[draw.integers(0, len(words), 23)]) for _ in range(TEXTS)])


def columns_of(rows: int, draw: np.random.Generator) -> dict[str, dict[str, Any]]:
    """Returns the columns of every table."""
    ids, groups = named("a", np.arange(rows)), np.arange(rows) // GROUP
    texts, place = sentences(draw), np.arange(rows)

    def text(number: int) -> pa.Array:
        return texts.take(pa.array(draw.integers(0, TEXTS, number)))

    roles = ["system", "user", *["assistant", "tool"] * TURNS][:-1]
    number = len(roles) * rows
    message = ROLLOUTS.schema.field("messages").type.value_type
    empty = pa.nulls(number, pa.string())
    messages = pa.StructArray.from_arrays(
        [pa.array(roles * rows), text(number), empty, empty], fields=list(message)
    )
    reply = [0] * REPLY_TOKENS
    mask = np.array(([1] * STEP_TOKENS + reply) * TURNS, np.int8)[:RESPONSE]
    logprobs = -draw.exponential(0.5, (rows, RESPONSE)).astype(np.float32) * mask
    events = pa.array([[]] * rows, ROLLOUTS.schema.field("events").type)

    def tokens(length: int) -> pa.Array:
        return lists(pa.array(draw.integers(0, 150_000, rows * length, np.int32)), length, rows)

    attempt = (place % GROUP >= GROUP // 2).astype(np.int32)
    constants: dict[str, Any] = {
        "kind": "whole",
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "max_response_tokens": 512,
        "policy_digest": "p" * 64,
        "tokenizer_digest": "t" * 64,
        "template_digest": "s" * 64,
        "finish_reason": "ended",
        "cost": 0.0,
        "env_status": "ok",
        "feedback_source": "rules/observed",
        "feedback_status": "",
        "feedback_request": "",
        "feedback_answer": "",
        "feedback_tokens": 0,
        "start_step_index": 0,
        "feedback_in_context": "",
    }
    rollouts = {name: [value] * rows for name, value in constants.items()} | {
        "rollout_id": ids,
        "task_id": named("b", groups % 20_000),
        "group_id": named("c", groups),
        "iteration": (place * 40 // rows).astype(np.int32),
        "attempt": attempt,
        "draw": (place % (GROUP // 2)).astype(np.int32),
        "parent_rollout_ids": lists(ids.take(pa.array(place[attempt == 1] - GROUP // 2)), attempt, rows),
        "guided": attempt == 1,
        "messages": lists(messages, len(roles), rows),
        "prompt_token_ids": tokens(PROMPT_TOKENS),
        "response_token_ids": tokens(RESPONSE),
        "loss_mask": lists(pa.array(np.tile(mask, rows)), RESPONSE, rows),
        "logprobs": lists(pa.array(logprobs.ravel()), RESPONSE, rows),
        "seed": place,
        "reward": draw.integers(0, 2, rows).astype(float),
        "events": events,
        "feedback_text": text(rows),
    }
    step = np.tile(np.arange(TURNS, dtype=np.int32), rows)
    start = step * (STEP_TOKENS + REPLY_TOKENS)
    owner = ids.take(pa.array(np.repeat(place, TURNS)))
    steps = {
        "rollout_id": owner,
        "step_index": step,
        "message_index": step,
        "token_start": start,
        "token_end": start + STEP_TOKENS,
        "text": text(rows * TURNS),
        "verifier_status": pa.array(["ok", "wrong", "unknown"]).take(
            pa.array(draw.integers(0, 3, rows * TURNS))
        ),
        **{name: [""] * (rows * TURNS) for name in ("verifier_code", "verifier_message")},
    }
    constant = {"context": ["bare"] * (rows * TURNS), "critic": ["c" * 64] * (rows * TURNS)}
    values = {"rollout_id": owner, "step_index": step, "value": draw.random(rows * TURNS)} | constant
    return {"rollouts": rollouts, "steps": steps, "values": values}


def tasks_of(draw: np.random.Generator) -> dict[str, Any]:
    """Returns the columns of 20,000 tasks."""
    number, texts = 20_000, sentences(draw)
    prompts = [[{"role": "user", "content": text}] for text in texts.to_pylist()]
    extra = {"split": "train", "index": 0, "cluster": "c", "details": "{}"}
    return {
        "task_id": named("b", np.arange(number)),
        "level": draw.integers(1, 4, number).astype(np.int32),
        "prompt": pa.array(prompts, TASKS.schema.field("prompt").type),
        "reward_model": [{"style": "rule", "ground_truth": "x"}] * number,
        "extra_info": [extra] * number,
        **{
            name: [text] * number
            for name, text in (("data_source", "x"), ("split", "train"), ("ability", "x"))
        },
    }


def write_stage(folder: Path, tables: dict[TableSpec, dict[str, Any]]) -> None:
    """Writes a stage's tables and a manifest that says as much as a viewer asks."""
    folder.mkdir(parents=True)
    files = []
    for spec, columns in tables.items():
        arrays = [
            of if isinstance(of, pa.Array) else pa.array(of, spec.schema.field(name).type)
            for name in spec.schema.names
            for of in [columns[name]]
        ]
        path = folder / f"{spec.name}.parquet"
        arrays = [array.cast(field.type) for array, field in zip(arrays, spec.schema, strict=True)]
        write_parquet(pa.Table.from_arrays(arrays, schema=spec.schema), spec, path)
        files.append({"kind": "table", "path": path.name, "bytes": path.stat().st_size})
    record = {"schema_version": SCHEMA_VERSION, "stage": folder.name, "files": files}
    record |= {"tables": {spec.name: {} for spec in tables}}
    (folder / "manifest.json").write_bytes(sealed(record))


def make_run(folder: Path, rows: int) -> None:
    """Makes the run unless it is there."""
    if (folder / "actor" / "manifest.json").exists():
        return
    draw = np.random.default_rng(0)
    write_stage(folder / "tasks", {TASKS: tasks_of(draw)})
    columns = columns_of(rows, draw)
    write_stage(folder / "actor", {spec: columns[spec.name] for spec in (ROLLOUTS, STEPS, VALUES)})


def measure(asked: Asked) -> Iterator[Row]:
    """Yields seconds of first pages by servers that have just begun, of rollouts, filters and searches."""
    rows, repeats = (2000 if asked.is_quick else 200_000), asked.options.repeats
    run = asked.data_dir / f"view-{rows}"
    make_run(run, rows)
    size = sum(path.stat().st_size for path in run.rglob("*.parquet")) / 1e9
    found: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        found.setdefault(name, []).append(seconds)

    draw = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder, Browser(Path(folder)) as browser:
        for _ in range(repeats):
            begun = time.perf_counter()
            command = [sys.executable, "-m", "stages.command", "view", str(run)]
            server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            assert server.stdout is not None
            address = server.stdout.readline().split()[0] + "view.html"
            note("command to address, s", time.perf_counter() - begun)
            note("all columns, s", browser.open(address) / 1000)
            note("first page, s", browser.value("Number(document.body.dataset.listed)") / 1000)
            note("all columns, CPU s of server", cpu_seconds(server.pid))
            note("page again, s", browser.open(address) / 1000)
            before = browser.cpu_seconds, cpu_seconds(server.pid)
            for row in (drawn := draw.integers(0, rows, 10).tolist()):
                note("a rollout, s", browser.go(f"stage=actor&id=a{row:031x}") / 1000)
            after = browser.cpu_seconds, cpu_seconds(server.pid)
            note("a rollout, CPU s of server", (after[1] - before[1]) / len(drawn))
            note("a rollout, CPU s of browser", (after[0] - before[0]) / len(drawn))
            note("with its tokens, s", browser.go(f"stage=actor&id=a{row:031x}&tokens=1") / 1000)
            note("its group side by side, s", browser.go(f"stage=actor&id=a{row:031x}&view=attempts") / 1000)
            note("a filter, s", browser.go("stage=actor&outcome=failure&attempt=1&level=2") / 1000)
            note("most surprising first, s", browser.go("stage=actor&sort=surprise") / 1000)
            note("text search of all, s", browser.go("stage=actor&q=nowhere+to+be+found") / 1000)
            if browser.errors:
                raise RuntimeError(browser.errors[0])
            memory = Path(f"/proc/{server.pid}/status").read_text().partition("VmHWM:")[2].split()[0]
            note("server's peak, GB", int(memory) * 1024 / 1e9)
            server.terminate()
            server.wait()
    yield from measured(VARIANT, {"rollouts": rows, "GB of tables": size, "load average": os.getloadavg()[0]})
    for name, numbers in found.items():
        yield from measured(VARIANT, {name: spread(numbers)}, len(numbers))


def slowest_below(seconds: float, *metrics: str) -> Any:
    """Returns the criterion that the slowest of some repeats, added up, is below this."""
    return lambda t: sum(t(VARIANT, metric, "high") for metric in metrics) < seconds


CRITERIA: Criteria = {
    "first page under 2 s": slowest_below(2, "first page, s"),
    "any rollout under 1 s": slowest_below(1, "a rollout, s"),
}
BENCHMARK = Benchmark("view", __doc__, measure, CRITERIA, quick=("run.seed=0",), options={"repeats": 5})

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
