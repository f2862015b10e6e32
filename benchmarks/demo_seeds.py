"""The demo on several seeds, each held against what the demo must show, and beside decoupled clip.

    python -m benchmarks.demo_seeds          # seeds 0, 1, 2: about twenty minutes each on two cores

Each seed runs the same stage commands as `make demo`, in `<data dir>/demo-seed<k>`; a run that is there
goes on where it stopped. Success of seed 0 by level and split is copied to docs/figures/. Then decoupled clip
trains the same starting policy on fresh rollouts alone, for no fewer than all that the demo sampled.
"""

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._material import linked
from benchmarks._results import Criteria, Row, at_least, measured, surely_positive
from benchmarks._run import ROOT, Asked, Benchmark, main, make_stages
from pipeline.artifacts.artifact import Artifact
from pipeline.runs import MAIN_CHAIN
from pipeline.statistics import ClusterBootstrap
from pipeline.tables import tasks_from

CONFIG = "configs/demo.yaml"
FIGURE, SHOWN = ROOT / "docs" / "figures" / "demo_levels.svg", "By level and split"
"""Of seed 0: the first drawing of its summary's section of this title."""
PARTS = {
    "first_try": "first try, temperature 1",
    "greedy": "first try, greedy",
    "with_feedback": "with feedback",
    "test_unseen_company": "unseen companies, first try",
}
SKILLS = {
    f"skill_vs_{of}": f"skill against {of.replace('_', ' ')}" for of in ("constant", "task_rate", "position")
}
OPPONENT, BESIDE = "decoupled clip, first try", "demo beside decoupled clip"
DECOUPLED_CLIP = (
    "stored.objective={kind: none}",
    "actor.credit={mode: decoupled_clip}",
    "actor.num_iterations=26",  # of some 325 rollouts (benchmarks/dense.py): the demo's, and some more
)

FIRST, GREEDY, UNSEEN = PARTS["first_try"], PARTS["greedy"], PARTS["test_unseen_company"]
CRITERIA: Criteria = {
    "start: first try in 15-45 %": lambda t: 0.15 <= t(FIRST, "start") <= 0.45,
    "first try: gain >= 20 points, with an interval": lambda t: (
        t(FIRST, "gain") >= 0.20 and math.isfinite(t(FIRST, "gain", "low") + t(FIRST, "gain", "high"))
    ),
    "greedy: start < 60 %": lambda t: t(GREEDY, "start") < 0.60,
    "greedy: gain >= 10 points": at_least(0.10, GREEDY, "gain"),
    "unseen companies: change not below 0": lambda t: t(UNSEEN, "gain", "high") >= 0,
    "unseen companies: >= 400 rollouts a side": lambda t: (t.row(UNSEEN, "gain").n or 0) >= 400,
    "gate: PASS": lambda t: t("critic", "gate passed") == 1,
    **{f"critic: {name} > 0": surely_positive("critic", name) for name in SKILLS.values()},
    "decoupled clip: no fewer rollouts": lambda t: t(OPPONENT, "rollouts") >= t("run", "rollouts sampled"),
    "at most 10 minutes": lambda t: max(t("run", "minutes"), t("run", "elapsed minutes")) <= 10,
}


def gained(variant: str, part: Mapping[str, Any]) -> list[Row]:
    """Returns a comparison of a summary: success of the starting policy and of the actor, and the gain."""
    figures = {"start": part["start"], "actor": part["actor"], "gain": (part["gain"], *part["interval"])}
    return measured(variant, figures, part["rollouts"])


def rows_of(summary: Mapping[str, Any], elapsed_minutes: float) -> list[Row]:
    """Returns what a run's summary.json says."""
    critic, budget, parts = summary["critic"], summary["budget"], summary["by_slice"] | summary
    found = {label: (critic[name]["value"], *critic[name]["interval"]) for name, label in SKILLS.items()}
    return [
        *(row for name, label in PARTS.items() for row in gained(label, parts[name])),
        *measured("critic", {"gate passed": critic["gate"] == "PASS", **found}),
        *measured("run", {"minutes": summary["minutes"], "elapsed minutes": elapsed_minutes}),
        *measured("run", {f"{name} sampled": budget[name] for name in ("rollouts", "tokens")}),
        *measured("run", {"updates of the actor": budget["updates"]}),
        *measured("minutes of a stage", summary["minutes_by_stage"]),
    ]


def run_chain(config: str, run: str, asked: Asked) -> tuple[dict[str, Any], float]:
    """Returns the summary of a run, made or finished by the stage commands, and the minutes this took."""
    began = time.monotonic()
    make_stages(config, run, (*MAIN_CHAIN, "summary"), asked.settings, asked.data_dir)
    summary = json.loads((asked.data_dir / run / "summary.json").read_text(encoding="utf-8"))
    return summary, (time.monotonic() - began) / 60


def measure(asked: Asked) -> Sequence[Row]:
    """Returns the rows of a seed's demo."""
    run = f"demo-seed{asked.seed}"
    summary, minutes = run_chain(CONFIG, run, asked)
    if asked.seed == 0 and not asked.settings[:-1]:
        page = (asked.data_dir / run / "summary.html").read_text(encoding="utf-8")
        FIGURE.write_text(drawing_of(page, SHOWN), encoding="utf-8")
    return [*rows_of(summary, minutes), *beside_decoupled_clip(run, asked)]


def beside_decoupled_clip(demo: str, asked: Asked) -> list[Row]:
    """Returns what decoupled clip gains from a demo's starting policy, and how far the demo is ahead."""
    home = linked(asked.data_dir, demo, "decoupled_clip", ("tasks", "sft"))
    settings = [*asked.settings, *DECOUPLED_CLIP]
    make_stages(CONFIG, home.name, ("actor", "evaluation", "summary"), settings, asked.data_dir)
    summary = json.loads((home / "summary.json").read_text(encoding="utf-8"))
    minutes = summary["minutes_by_stage"]["actor"]
    ours, theirs = (first_tries(folder) for folder in (asked.data_dir / demo, home))
    tasks = sorted(tasks_from(Artifact.open(home, "tasks").table("tasks")), key=lambda task: task.task_id)
    both = [task for task in tasks if task.task_id in ours and task.task_id in theirs]
    boot = ClusterBootstrap([task.cluster for task in both])
    ahead = boot.mean(np.array([ours[task.task_id] - theirs[task.task_id] for task in both]))
    return [
        *gained(OPPONENT, summary["first_try"]),
        *measured(OPPONENT, {"rollouts": summary["budget"]["rollouts"], "minutes of its actor": minutes}),
        *measured(BESIDE, {"ahead": ahead}, len(both)),
    ]


def first_tries(run: Path) -> dict[str, float]:
    """Returns task_id -> success of a run's actor at its first tries at temperature 1."""
    evaluation = Artifact.open(run, "evaluation")
    columns = ["task_id", "policy_digest", "attempt", "temperature", "reward"]
    actor, found = evaluation.report["policies"]["actor"], dict[str, list[float]]()
    for row in evaluation.table("rollouts").select(columns).to_pylist():
        is_first_try = row["policy_digest"] == actor and row["attempt"] == 0 and row["temperature"] == 1
        if is_first_try and row["reward"] is not None:
            found.setdefault(row["task_id"], []).append(row["reward"])
    return {task: float(np.mean(rewards)) for task, rewards in found.items()}


def drawing_of(page: str, title: str) -> str:
    """Returns the first drawing of a section as a file of its own; ValueError if the page has none there."""
    start = page.index(f"<h2>{title}</h2>")
    section = page[start : page.index("</section>", start)]
    return section[section.index("<svg") : section.index("</svg>")] + "</svg>\n"


BENCHMARK = Benchmark("demo_seeds", __doc__, measure, CRITERIA, seeds=(0, 1, 2))

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
