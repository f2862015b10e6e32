"""The actor alone on one stored demo: lam x alpha of v_dapo, decoupled clip, and the critic as baseline only.

    python -m benchmarks.lam_alpha                   # seed 0, on demo_seeds' run, made if need be
    python -m benchmarks.lam_alpha --seeds 0 1 2     # eleven actors a seed, some minutes each

Every arm links the stages up to stored, so tasks, critic and the policy that it starts from are the same;
only the actor stage differs. Each look at `val` takes all of its tasks. Rollouts are the actor's own: what
the critic cost is the same in the arms that use it, and is no part of these figures.
"""

import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks._material import linked
from benchmarks._results import Row, measured
from benchmarks._run import Asked, Benchmark, main, make_stages
from benchmarks.demo_seeds import CONFIG

STAGES = ("tasks", "sft", "rollouts", "labels", "critic", "critic_report", "stored")
LAMS, ALPHAS = (0.0, 0.5, 0.95), (0.5, 1.0, 2.0)
V_DAPO = {"mode": "v_dapo", "kl": 0.0, "drift": {"react": "never", "paid_every": 0}}
ARMS: dict[str, dict[str, Any]] = {
    "decoupled_clip": {"mode": "decoupled_clip"},
    "alpha 0": {**V_DAPO, "alpha": 0.0},
    **{
        f"lam {lam:g}, alpha {alpha:g}": {**V_DAPO, "lam": lam, "alpha": alpha}
        for lam, alpha in itertools.product(LAMS, ALPHAS)
    },
}
ACTOR = ("actor.evaluate_tasks=400", "actor.num_iterations=10")  # the demo's four would tell little


def figures_of(report: Mapping[str, Any]) -> dict[str, float]:
    """Returns what an actor's report.json says of its learning."""
    learning = report["learning"]
    looks = [entry["val"] for entry in learning if "val" in entry]
    return {
        "success at the first look": looks[0],
        "success at the last look": looks[-1],
        "mean success of the looks": sum(looks) / len(looks),
        "rollouts": sum(entry["rollouts"] for entry in learning),
        "mixed sets of an iteration": sum(look["mixed_sets"] for look in learning) / len(learning),
    }


def measure(asked: Asked) -> Iterator[Row]:
    """Yields the rows of a seed, arm by arm; an arm that is there is read."""
    run = f"demo-seed{asked.seed}"
    make_stages(CONFIG, run, STAGES, asked.settings, asked.data_dir)
    for arm, credit in ARMS.items():
        folder = linked(asked.data_dir, run, arm.replace(", ", "-").replace(" ", ""), STAGES)
        settings = [*ACTOR, f"actor.credit={json.dumps(credit)}", *asked.settings]
        make_stages(CONFIG, folder.name, ("actor",), settings, asked.data_dir)
        report = json.loads((folder / "actor" / "report.json").read_text("utf-8"))
        yield from measured(arm, figures_of(report))


BENCHMARK = Benchmark("lam_alpha", __doc__, measure, seeds=(0,))

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
