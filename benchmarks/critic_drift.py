"""A critic beside an actor that moves far away from it: the monitor's curve, and whether staleness is caught.

    python benchmarks/critic_drift.py --config configs/phone-l3-tiny.yaml --run quality-seed0
    python benchmarks/critic_drift.py --quick          # after critic_quality.py --quick: a minute, no figures

Makes or finishes the run up to critic_report. Its actor is trained twice more, in runs of their own that
link these stages, with a KL term too small to hold it and a larger step, a paid check every few updates. Most
companies of its tasks are those that the critic was fitted on, as in any actor's training:

    far      every reaction off: bias, slope, step advantages and KL, iteration by iteration
    watched  reactions on (no refresh): what is recalibrated, and when the step weight goes to zero

Then the critic of the starting policy is held beside fresh rollouts of `val` tasks, by the far actor (stale),
by a policy that sft made in a fifth of the updates (foreign) and by the starting policy (fresh), with the
same checks. Stale and foreign must be caught, fresh must not. (No run can begin with a critic of another
policy: the actor refuses it.)

Last, the far actor's stored values are refitted after the fact, to so many iterations whenever one is found
off: the mean of abs(bias) says how many serve.
Results: benchmarks/results/critic_drift.json and .svg. The same command goes on where it was stopped. Exits
1 if a criterion fails.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._critics import QUICK, STAGES, make_stages
from benchmarks._measuring import RESULTS, ROOT, conclude
from benchmarks.demo_seeds import machine_facts
from pipeline.artifacts.metrics import read_metrics
from pipeline.errors import ArtifactError

if TYPE_CHECKING:
    from stages.settings import Drift

FAR = {
    "actor.alpha": "0.5",
    "actor.kl_coefficient": "1e-6",  # holds nothing; at 0 the KL would not be measured
    "actor.drift.refresh": "never",
    "actor.on_weak_critic": "allow",
    "actor.stops": "{max_kl: null, max_length_change: null, falling_evaluations: 0}",
}
QUICK_ACTOR = (
    "actor.tasks_per_update=4",
    "actor.updates_per_iteration=1",
    "actor.max_refills=0",
    "actor.warmup_updates=1",
    "actor.chain={num_attempts: 1, draws: 4}",
    "actor.evaluate_every=9",
    "actor.evaluate_tasks=2",
    "actor.drift.states=4",
    "actor.drift.num_continuations=2",
)
"""With the settings of `critic_quality.py --quick`: shows nothing but that all of this works."""
ARMS = {
    "far": {
        "actor.drift.recalibrate": "false",
        "actor.drift.step_weight_to_zero": "false",
        "actor.alpha_after_clean": "0.5",  # as before
    },
    "watched": {
        "actor.drift.recalibrate": "true",
        "actor.drift.step_weight_to_zero": "true",
        "actor.alpha_after_clean": "1.0",
    },
}

PANELS: dict[str, tuple[str, float | None]] = {
    "bias": ("bias of its values", 0.0),
    "slope": ("slope of its log-odds", 1.0),
    "rho_a": ("advantage correlation (paid checks)", 0.0),
    "kl": ("KL to the starting policy, nats a token", None),
}
"""Title and, where there is one, a line: a right critic's value, and of rho_A one that knows nothing."""
REFITS = (0, 1, 3, 5)
"""What the far actor's values are refitted to afterwards, in iterations; 0: as they were."""
Seen = tuple[np.ndarray, float, str]
"""Values of a rollout's states, its reward and its cluster."""
SHOWN = ("bias", "slope", "skill", "rho_a", "ev_within", "sign_agreement")


def far_enough(entries: Sequence[dict[str, Any]]) -> bool:
    """Returns whether the critic's bias differs by 10 points between the first rollouts and the last."""
    return abs(entries[-1]["bias"] - entries[0]["bias"]) > 0.1


def reacted(entries: Sequence[dict[str, Any]]) -> bool:
    """Returns whether what was found had its effect: a finding alone is none.

    From the iteration after the first paid check that found steps off, alpha is 0, as it was not before. If
    no check did, or only the last iteration's, values were used with a corrected level or slope.
    """
    found = next((i for i, entry in enumerate(entries) if entry.get("steps_off")), len(entries))
    if after := entries[found + 1 :]:
        return entries[found]["alpha"] > 0 and all(entry["alpha"] == 0 for entry in after)
    return any(e["correction_shift"] != 0 or e["correction_slope"] != 1 for e in entries)


def did_nothing(entries: Sequence[dict[str, Any]]) -> bool:
    """Returns whether the watch only looked: one alpha, and no correction, all along."""
    held = {(entry["alpha"], entry["correction_shift"], entry["correction_slope"]) for entry in entries}
    return len(held) == 1 and entries[0]["correction_slope"] == 1


CRITERIA = {
    "far: its watch only looked": lambda r: did_nothing(r["arms"]["far"]),
    "far: the level drifts by more than 10 points": lambda r: far_enough(r["arms"]["far"]),
    "far: the KL to the starting policy grows above .1": lambda r: r["arms"]["far"][-1]["kl"] > 0.1,
    "far: at least 3 paid checks": lambda r: sum("steps_off" in e for e in r["arms"]["far"]) >= 3,
    "watched: it reacted": lambda r: reacted(r["arms"]["watched"]),
    "stale: caught": lambda r: r["held"]["stale"]["caught"],
    "foreign: caught": lambda r: r["held"]["foreign"]["caught"],
    "fresh: not caught": lambda r: not r["held"]["fresh"]["caught"],
}


def run_arm(options: argparse.Namespace, data_dir: Path, arm: str) -> list[dict[str, Any]]:
    """Returns the drift of one arm, iteration by iteration; trains it unless that is done.

    `success` is that of the look at `val`, where there was one.

    Raises:
        SystemExit: the actor stage failed; what it made stays.
    """
    run = data_dir / f"{options.run}-{arm}"
    run.mkdir(exist_ok=True)
    for stage in STAGES:
        if not os.path.lexists(run / stage):
            os.symlink(data_dir / options.run / stage, run / stage, target_is_directory=True)
    settings = FAR | {
        "actor.learning_rate": str(options.learning_rate),
        "actor.num_iterations": str(options.iterations),
        "actor.drift.paid_every": str(options.paid_every),
    } | ARMS[arm]  # fmt: skip
    command = [sys.executable, "-m", "stages.actor", options.config, "--run", run.name]
    command += [f"{name}={value}" for name, value in settings.items()]
    command += [*options.settings, f"run.data_dir={json.dumps(str(data_dir))}"]
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"{arm}: the actor ended with {done.returncode}; what to do, it says above")
    report: dict[str, Any] = json.loads((run / "actor" / "report.json").read_text("utf-8"))
    looks = read_metrics(run / "actor" / "metrics.jsonl")
    success = {look["iteration"]: look["val/first_try"] for look in looks if "val/first_try" in look}
    return [
        entry | ({"success": success[entry["iteration"]]} if entry["iteration"] in success else {})
        for entry in report["drift"]
    ]


def refitted(options: argparse.Namespace, data_dir: Path) -> dict[str, float]:
    """Returns the mean abs(bias) of the far actor's iterations, by how many each refit would have been to."""
    from pipeline.artifacts.artifact import Artifact
    from pipeline.config import load_config
    from pipeline.tables import tasks_from
    from stages.settings import Config

    config = load_config(Config, ROOT / options.config, options.settings)
    run = data_dir / f"{options.run}-far"
    actor = Artifact.open(run, "actor")
    cluster = {task.task_id: task.cluster for task in tasks_from(Artifact.open(run, "tasks").table("tasks"))}
    values: dict[str, list[float]] = defaultdict(list)
    for row in actor.table("values").to_pylist():  # by rollout, steps in order
        if row["context"] == "bare":
            values[row["rollout_id"]].append(row["value"])
    iterations: dict[int, list[Seen]] = defaultdict(list)
    columns = ["rollout_id", "iteration", "task_id", "reward"]
    for row in actor.table("rollouts").select(columns).to_pylist():
        if row["rollout_id"] in values and row["reward"] is not None:
            seen = np.array(values[row["rollout_id"]]), row["reward"], cluster[row["task_id"]]
            iterations[row["iteration"]].append(seen)
    played = [iterations[i] for i in sorted(iterations)]
    return {
        str(last): refitted_bias(played, config.actor.drift, last=last, seed=config.run.seed)
        for last in REFITS
    }


def refitted_bias(played: Sequence[Sequence[Seen]], limits: Drift, *, last: int, seed: int) -> float:
    """Returns the mean abs(bias) of iterations, had each that was found off refitted to so many until it.

    Args:
        played: a list per iteration: values as frozen, reward and cluster of each rollout.
        limits: beyond which a level is off.
        last: iterations that a refit is to; 0: none is made.
        seed: of the checks' resamples.
    """
    from critics.drift.checks import Correction, fit_correction, free_check, level_is_off

    correction, biases = Correction(), []
    for i, of in enumerate(played):
        check = free_check(
            [correction(v) for v, _, _ in of], [r for _, r, _ in of], [c for *_, c in of], seed=seed
        )
        biases.append(abs(check.bias.value))
        if last and level_is_off(
            check, max_bias=limits.max_bias, min_slope=limits.min_slope, max_slope=limits.max_slope
        ):
            recent = [seen for one in played[max(0, i + 1 - last) : i + 1] for seen in one]
            correction = fit_correction([v for v, _, _ in recent], [r for _, r, _ in recent])
    return float(np.mean(biases))


def held_beside(options: argparse.Namespace, data_dir: Path, folder: Path) -> dict[str, Any]:
    """Returns what the checks say of the run's critic beside fresh rollouts of the policy in a folder."""
    from env.play.chains import plan_groups
    from pipeline.artifacts.artifact import Artifact
    from pipeline.config import load_config
    from pipeline.models.policy import load_policy
    from pipeline.tables import tasks_from
    from stages.rollouts import play_chains
    from stages.settings import Config
    from stages.wiring.build import load_critic, make_player
    from stages.wiring.watch import Watch

    overrides = [*options.settings, f"run.data_dir={json.dumps(str(data_dir))}"]
    config = load_config(Config, ROOT / options.config, overrides)
    start: Any = SimpleNamespace(
        config=config,
        seed=config.run.seed,
        stage_key="critic_drift",
        run_dir=data_dir / options.run,
        say=print,
        stop_if_asked=lambda: None,
        item_done=lambda: None,
    )
    source = Artifact.open(data_dir / options.run, "tasks")
    tasks = [task for task in tasks_from(source.table("tasks")) if task.split == "val"]
    critic = load_critic(config, data_dir / options.run / "critic" / "critic")
    watch = Watch(start, critic, tasks)
    policy = load_policy(folder)
    player = make_player(config, policy)
    groups = plan_groups(
        tasks[: options.tasks],
        stage_key="critic_drift",
        seed=start.seed,
        iteration=0,
        num_attempts=1,
        draws=2,
    )
    rollouts, _ = play_chains(
        player,
        groups,
        config.actor.chain,
        seed=start.seed,
        purpose="critic_drift",
        stop_at_success=False,
        start=start,
    )
    checked = watch.play(player, rollouts)
    paid = watch.check([*rollouts, *checked], 0)
    scored = [r for r in rollouts if r.reward is not None and r.steps]
    free = watch.look(scored, {r.rollout_id: v for r, v in zip(scored, watch.values(scored), strict=True)})
    found = {name.removeprefix("critic_drift/"): value for name, value in (free | paid).items()}
    return found | {"caught": bool(found["level_off"] or found.get("steps_off"))}


def foreign_policy(options: argparse.Namespace, data_dir: Path) -> Path:
    """Returns the folder of a policy that the critic was not made for: sft in a fifth of the updates."""
    from pipeline.config import load_config
    from stages.settings import Config

    run = data_dir / f"{options.run}-foreign"
    run.mkdir(exist_ok=True)
    if not os.path.lexists(run / "tasks"):
        os.symlink(data_dir / options.run / "tasks", run / "tasks", target_is_directory=True)
    updates = load_config(Config, ROOT / options.config, options.settings).sft.num_updates // 5
    make_stages(
        options.config, run.name, ("sft",), [*options.settings, f"sft.num_updates={updates}"], data_dir
    )
    return run / "sft" / "policy"


def as_markdown(held: dict[str, dict[str, Any]]) -> str:
    """Returns the table: a line per policy that the critic was held beside."""
    lines = ["| critic | caught | " + " | ".join(SHOWN) + " |", "|---|---|" + "---|" * len(SHOWN)]
    for name, found in held.items():
        cells = ["-" if found.get(n) is None else f"{found[n]:.2f}" for n in SHOWN]
        lines.append(f"| {name} | {'yes' if found['caught'] else 'no'} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def picture(arms: dict[str, list[dict[str, Any]]]) -> str:
    """Returns one drawing: a panel per figure against iterations, a curve per arm."""
    from pipeline.report.plots import BLUE, GREY, RED, draw, paint_bounds

    def paint(axes: Any) -> None:
        figure = axes.figure
        axes.remove()
        panels = figure.subplots(2, 2, sharex=True).flat
        for panel, (name, (title, right)) in zip(panels, PANELS.items(), strict=True):
            for (arm, entries), colour in zip(arms.items(), (RED, BLUE), strict=False):
                points = [entry for entry in entries if isinstance(entry.get(name), float)]
                xs, ys = [entry["iteration"] for entry in points], [entry[name] for entry in points]
                panel.plot(xs, ys, color=colour, marker="o", ms=3, lw=1, label=arm)
                low, high = (
                    [entry.get(f"{name}_{side}", math.nan) for entry in points] for side in ("low", "high")
                )
                paint_bounds(panel, xs, low, high, colour)
            if right is not None:
                panel.axhline(right, color=GREY, ls="--", lw=1)
            if name == "kl":  # a single unlikely token can make an estimate of it a hundred nats
                panel.set_yscale("log")
            panel.set_title(title, fontsize=9)
        figure.supxlabel("iteration", fontsize=9)
        figure.axes[0].legend(frameon=False, fontsize=8)

    return draw("drift", paint, size=(7.5, 5))


def main(argv: Sequence[str] | None = None) -> int:
    """Trains both arms, holds the critic beside both policies, writes the results; 1 if a criterion fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="configs/phone-l3-tiny.yaml")
    parser.add_argument("--run", default="quality-seed0", help="run with a critic and its report")
    parser.add_argument("--set", nargs="+", default=[], metavar="section.key=value", dest="settings")
    parser.add_argument("--data-dir", type=Path, default=ROOT / "data")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--iterations", type=int, default=24)
    parser.add_argument("--paid-every", type=int, default=4, help="updates between paid checks")
    parser.add_argument(
        "--results",
        type=Path,
        help="default: benchmarks/results/critic_drift.json, with other settings beside the run",
    )
    parser.add_argument(
        "--quick", action="store_true", help="on the run of critic_quality.py --quick; judges nothing"
    )
    parser.add_argument("--tasks", type=int, default=200, help="for the two policies held beside the critic")
    options = parser.parse_args(argv)
    data_dir = options.data_dir.resolve()
    if options.quick:
        data_dir /= "quick"
        options.settings = [*QUICK, *QUICK_ACTOR, *options.settings]
        options.iterations, options.paid_every, options.tasks = 3, 1, 8
    shaping = ("config", "run", "learning_rate", "iterations", "paid_every", "tasks")
    as_committed = all(getattr(options, name) == parser.get_default(name) for name in shaping)
    as_committed &= not options.settings
    path = options.results or (RESULTS if as_committed else data_dir) / "critic_drift.json"
    make_stages(options.config, options.run, STAGES, options.settings, data_dir)
    try:
        arms = {arm: run_arm(options, data_dir, arm) for arm in ARMS}
        held = {
            "fresh": held_beside(options, data_dir, data_dir / options.run / "sft" / "policy"),
            "stale": held_beside(options, data_dir, data_dir / f"{options.run}-far" / "actor" / "actor"),
            "foreign": held_beside(options, data_dir, foreign_policy(options, data_dir)),
        }
    except ArtifactError as error:
        raise SystemExit(str(error)) from error
    results = {
        "machine": machine_facts(),
        "settings": options.settings,
        **{name: getattr(options, name) for name in shaping},
        "actor": {arm: FAR | of for arm, of in ARMS.items()},
        "arms": arms,
        "held": held,
        "refitted": refitted(options, data_dir),
    }
    for arm, entries in arms.items():
        for entry in entries:
            told = {
                name: entry.get(name)
                for name in ("bias", "slope", "skill", "rho_a", "steps_off", "alpha", "kl")
            }
            print(arm, entry["iteration"], *(f"{k} {v:.3f}" for k, v in told.items() if v is not None))
    print(as_markdown(held))
    print("mean abs(bias) of far's values, refitted to so many iterations:", results["refitted"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".svg").write_text(picture(arms) + "\n", encoding="utf-8")
    if options.quick:
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        return 0
    return conclude(path, results, CRITERIA)


if __name__ == "__main__":
    sys.exit(main())
