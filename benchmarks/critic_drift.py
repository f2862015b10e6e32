"""A critic beside an actor that moves far away from it: what the monitor sees, and if staleness is caught.

    python -m benchmarks.critic_drift --seeds 2    # on the run of critic_quality, made if need be
    python -m benchmarks.critic_drift --quick      # after critic_quality --quick: a minute, no figures

The run's actor is trained twice more, in runs that link its stages, with a KL term too small to hold it
and a larger step, a paid check every few updates. Most of its tasks are of companies that the critic was
fitted on, as in any training:

    far      the watch only looks: bias, slope and KL, iteration by iteration
    watched  the watch may act (no refresh): recalibrate, and take the step weight away

Then the critic of the starting policy is held beside fresh rollouts of `val` tasks, by the far actor
(stale), by a policy that sft made in a fifth of the updates (foreign) and by the starting policy (fresh).
Stale and foreign must be caught, fresh must not.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._material import CONFIG, QUICK, STAGES, linked
from benchmarks._results import Criteria, Row, measured
from benchmarks._run import ROOT, Asked, Benchmark, main, make_stages
from critics.drift.state import DriftRules, DriftState
from env.play.chains import Chained, plan_groups
from env.play.continuations import Continuations
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.metrics import read_metrics
from pipeline.config import load_config
from pipeline.credit import VDapo
from pipeline.credit.updates import scored
from pipeline.tables import tasks_from
from stages.settings import Config

FAR = {
    "actor.credit.alpha": "0.5",
    "actor.credit.kl": "1e-6",  # holds nothing; at 0 the KL would not be measured
    "actor.credit.on_weak_critic": "allow",
    "actor.stops": "false",
}
QUICK_ACTOR = (
    *("actor.tasks_per_update=4", "actor.updates_per_iteration=1", "actor.max_refills=0"),
    *("actor.chain={num_attempts: 1, draws: 4}", "actor.evaluate_tasks=2"),
    *("actor.credit.drift.states=4", "actor.credit.drift.num_continuations=3"),
)
"""Beside the settings of `critic_quality --quick`."""
ARMS = {"far": "never", "watched": "correct"}
"""Arm -> `actor.credit.drift.react`."""

HELD = ("bias", "slope", "rho_a", "ev_within", "sign_agreement")
CURVES = ("bias", "slope", "kl", "rho_a", "success")

CRITERIA: Criteria = {
    "far: its watch only looked": lambda t: t("far", "only looked") == 1,
    "far: the level drifts by more than 10 points": lambda t: abs(t("far", "drift of the level")) > 0.1,
    "far: the KL to the starting policy grows above .1": lambda t: t("far", "last KL") > 0.1,
    "far: at least 3 paid checks": lambda t: (t.row("far", "steps off").n or 0) >= 3,
    "watched: it reacted": lambda t: t("watched", "reacted") == 1,
    "stale: caught": lambda t: t("stale", "caught") == 1,
    "foreign: caught": lambda t: t("foreign", "caught") == 1,
    "fresh: not caught": lambda t: t("fresh", "caught") == 0,
}


def reacted(entries: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether what was found had its effect: a finding alone is none.

    From the iteration after the first paid check that found steps off, alpha is 0, as it was not before. If
    no check did, or only the last iteration's, values were used with a corrected level or slope.
    """
    found = next((i for i, entry in enumerate(entries) if entry.get("steps_off")), len(entries))
    if after := entries[found + 1 :]:
        return entries[found]["alpha"] > 0 and all(entry["alpha"] == 0 for entry in after)
    return any(e["correction_shift"] != 0 or e["correction_slope"] != 1 for e in entries)


def held_beside(config: Config, run: Path, folder: Path, num_tasks: int) -> dict[str, Any]:
    """Returns what the checks say of the run's critic beside fresh rollouts of the policy in a folder."""
    from env.play.team import Team
    from env.play.units import Episodes
    from stages.wiring.build import load_critic
    from stages.wiring.hands import Recipe, make_hands
    from stages.wiring.watch import Watch, chosen_for_check

    seed, settings = config.run.seed, config.actor.credit.model_dump()["drift"]
    rules = DriftRules(**settings | {"react": "never"})
    tasks = {t.task_id: t for t in tasks_from(Artifact.open(run, "tasks").table("tasks")) if t.split == "val"}
    critic = load_critic(config, run / "critic" / "critic")
    watch = Watch(critic, rules, tasks, seed, print, DriftState())
    how: dict[str, Any] = {"stage_key": "critic_drift", "seed": seed, "iteration": 0}
    how |= {"num_attempts": 1, "draws": 2}
    groups = plan_groups(list(tasks.values())[:num_tasks], **how)
    chained = Chained(
        groups,
        seed=seed,
        purpose="critic_drift",
        max_feedback_tokens=config.prompt.max_feedback_tokens,
        stop_at_success=False,
    )
    with closing(make_hands(config)) as hands:
        team = Team(hands, Recipe(config, folder))
        rollouts = team.play(chained, lambda _: None).rollouts
        chosen = chosen_for_check(rollouts, rules.states)
        asked = Continuations("critic_drift", seed, "drift").of_all(chosen, tasks, rules.num_continuations)
        checked = team.play(Episodes(asked), lambda _: None).rollouts
    values = scored(rollouts, watch.values)
    looked = watch.after([r for r in rollouts if r.rollout_id in values], values, checked, 0, VDapo())
    found = {name.removeprefix("critic_drift/"): value for name, value in looked.items()}
    return found | {"caught": bool(found["level_off"] or found.get("steps_off"))}


def run_arm(asked: Asked, run: str, arm: str) -> list[dict[str, Any]]:
    """Returns the drift of one arm, iteration by iteration; trains it unless that is done.

    `success` is that of the look at `val`, where there was one.
    """
    folder = linked(asked.data_dir, run, arm, STAGES)
    options = asked.options
    settings = FAR | {
        "actor.credit.drift.react": ARMS[arm],
        "actor.learning_rate": str(options.learning_rate),
        "actor.num_iterations": str(options.iterations),
        "actor.credit.drift.paid_every": str(options.paid_every),
    }  # fmt: skip
    overrides = [f"{name}={value}" for name, value in settings.items()]
    make_stages(CONFIG, folder.name, ("actor",), [*overrides, *asked.settings], asked.data_dir)
    report = json.loads((folder / "actor" / "report.json").read_text("utf-8"))
    looks = read_metrics(folder / "actor" / "metrics.jsonl")
    success = {look["iteration"]: look["val/first_try"] for look in looks if "val/first_try" in look}
    return [
        entry | ({"success": success[entry["iteration"]]} if entry["iteration"] in success else {})
        for entry in report["drift"]
    ]


def rows_of_arm(arm: str, entries: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Returns what an arm's watch found and did, then its curves: an iteration is a variant."""
    acted = {(entry["alpha"], entry["correction_shift"], entry["correction_slope"]) for entry in entries}
    paid = [bool(entry["steps_off"]) for entry in entries if "steps_off" in entry]
    figures = {
        "only looked": len(acted) == 1 and entries[0]["correction_slope"] == 1,
        "reacted": reacted(entries),
        "drift of the level": entries[-1]["bias"] - entries[0]["bias"],
        "last KL": entries[-1]["kl"],
        "last alpha": entries[-1]["alpha"],
        "mean bias of the last third": float(np.mean([e["bias"] for e in entries[-(len(entries) // 3) :]])),
    }
    rows = measured(arm, figures)
    rows += measured(arm, {"level off": sum(entry["level_off"] for entry in entries)}, len(entries))
    rows += measured(arm, {"steps off": sum(paid)}, len(paid))
    for entry in entries:
        curves = {
            name: (entry[name], entry.get(f"{name}_low"), entry.get(f"{name}_high"))
            for name in CURVES
            if entry.get(name) is not None
        }
        rows += measured(f"{arm} {entry['iteration']}", curves)
    return rows


def measure(asked: Asked) -> list[Row]:
    """Returns the rows of both arms, of the critic beside three policies, and of refits afterwards."""
    if asked.is_quick:
        asked.settings[len(QUICK) : len(QUICK)] = QUICK_ACTOR
        asked.options.iterations, asked.options.paid_every, asked.options.tasks = 3, 1, 8
    name = f"quality-seed{asked.seed}"
    run = asked.data_dir / name
    make_stages(CONFIG, name, STAGES, asked.settings, asked.data_dir)
    config = load_config(Config, ROOT / CONFIG, [*asked.settings, f"run.data_dir={asked.data_dir}"])
    rows = [row for arm in ARMS for row in rows_of_arm(arm, run_arm(asked, name, arm))]
    foreign = linked(asked.data_dir, name, "foreign", ("tasks",))
    fewer = f"sft.num_updates={config.sft.num_updates // 5}"
    make_stages(CONFIG, foreign.name, ("sft",), [*asked.settings, fewer], asked.data_dir)
    policies = {
        "fresh": run / "sft" / "policy",
        "stale": asked.data_dir / f"{name}-far" / "actor" / "actor",
        "foreign": foreign / "sft" / "policy",
    }
    for who, folder in policies.items():
        found = held_beside(config, run, folder, asked.options.tasks)
        figures = {x: (found.get(x), found.get(f"{x}_low"), found.get(f"{x}_high")) for x in HELD}
        rows += measured(who, {"caught": found["caught"], **figures})
    return rows


OPTIONS = {"learning_rate": 1e-3, "iterations": 24, "paid_every": 4, "tasks": 200}
BENCHMARK = Benchmark("critic_drift", __doc__, measure, CRITERIA, seeds=(2,), quick=QUICK, options=OPTIONS)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
