"""Levers where success is dense: each changes an arm of configs/comparison-dense.yaml.

    python -m benchmarks.levers --seeds 3                                    # every lever
    python -m benchmarks.levers --seeds 3 --levers oracle_16,near_half       # these, into the data folder

The runs lie beside those of benchmarks/dense.py and share what is alike. A lever takes some six minutes of
one core, the oracle half an hour; a call that was stopped goes on, and its file has the levers of that call.
A difference is of one training each, its interval over the tasks of a look alone. What is seen on seeds 3
and 4 chooses no setting of benchmarks/dense.py, which reports them; on 100 and 101 the rate of
decoupled clip in benchmarks/from_start.py was chosen.
"""

import sys
from typing import Any

from benchmarks._levers import Levers, measure_of
from benchmarks._run import Benchmark, main

CORRECT: dict[str, Any] = {"actor.credit.drift.react": "correct"}
NOT_STORED: dict[str, Any] = {"stored.objective": {"kind": "none"}}
RATE: dict[str, Any] = {"actor.learning_rate": 1.0e-3}
SHORT_AUDIT: dict[str, Any] = {"critic_report.tasks_per_split": 30}
CHEAP: dict[str, Any] = SHORT_AUDIT | {"rollouts.num_tasks": 300, "critic.fit_share": 0.72}
CHEAP_FROM_START: dict[str, Any] = NOT_STORED | CHEAP | {"actor.num_iterations": 18}
LEVERS: Levers = {
    # What values of states may do, beside the same stored phase without a critic.
    "v_dapo": ("v_dapo", "no_critic", {}),
    "oracle_16": (
        "oracle",
        "no_critic",
        {"actor.credit.drift.num_continuations": 16, "actor.num_iterations": 6},
    ),
    "shuffled": ("shuffled", "no_critic", {}),
    "lam_0": ("v_dapo", "no_critic", {"actor.credit.lam": 0.0}),
    "features": ("v_dapo", "no_critic", {"critic.privileged": "features"}),
    # The critic is of the policy before the stored phase: from here on its level follows what the actor does.
    "correct": ("v_dapo", "no_critic", CORRECT),
    "alpha_0": ("v_dapo", "no_critic", CORRECT | {"actor.credit.alpha": 0.0}),
    "near_half": ("v_dapo", "no_critic", CORRECT | {"actor.task_order": "near_half"}),
    "pairs": (
        "v_dapo",
        "no_critic",
        CORRECT
        | {
            "actor.chain": {"num_attempts": 1, "draws": 2, "feedback_free_draws": 2},
            "actor.tasks_per_update": 64,
        },
    ),
    # At the stored phase's rate: what is left there may be learnt faster, or come apart.
    "no_critic_rate": ("no_critic", "no_critic", RATE),
    "rate": ("v_dapo", "no_critic_rate", RATE | SHORT_AUDIT | {"actor.num_iterations": 13}),
    # As correct, with a critic of the policy after the stored phase; of 300 tasks 216 are fitted to.
    "own_critic": (
        "v_dapo",
        "no_critic",
        {
            "actor.credit.drift.react": "refresh_first",
            "actor.credit.drift.refresh_tasks": 300,
            "critic.fit_share": 0.72,
        },
    ),
    # Without a stored phase: most is left to learn, and the critic is of the policy that begins.
    "from_start": ("v_dapo", "decoupled_clip", NOT_STORED | {"actor.num_iterations": 15}),
    "from_start_rate": (
        "v_dapo",
        "decoupled_clip",
        NOT_STORED | RATE | {"actor.num_iterations": 15},
    ),
    "alpha_0_from_start": (  # the same without step advantages
        "v_dapo",
        "decoupled_clip",
        NOT_STORED | RATE | {"actor.num_iterations": 15, "actor.credit.alpha": 0.0},
    ),
    # A critic that costs a fifth: 216 tasks to fit to in place of 540, an audit of 30 in place of 120.
    "cheap_from_start": ("v_dapo", "decoupled_clip", CHEAP_FROM_START),
    "cheap_from_start_rate": ("v_dapo", "decoupled_clip", CHEAP_FROM_START | RATE),
    "cheap_small_sets": (  # twice the tasks, half the draws of each: V(s_0) is the baseline
        "v_dapo",
        "decoupled_clip",
        CHEAP_FROM_START
        | RATE
        | {"actor.chain": {"num_attempts": 1, "draws": 4}, "actor.tasks_per_update": 32},
    ),
    "cheap_alpha_2": ("v_dapo", "decoupled_clip", CHEAP_FROM_START | RATE | {"actor.credit.alpha": 2.0}),
    "oracle_16_from_start": (
        "oracle",
        "decoupled_clip",
        NOT_STORED | {"actor.credit.drift.num_continuations": 16, "actor.num_iterations": 6},
    ),
    # What needs no values.
    "verifier_steps": ("verifier_steps", "no_critic", {}),
    "stripped": (
        "no_critic",
        "no_critic",
        {
            "actor.guided": "stripped",
            "actor.chain": {"num_attempts": 2, "draws": 8, "feedback_free_share": 0.5},
            "actor.num_iterations": 10,
        },
    ),
    "passes": ("no_critic", "no_critic", {"actor.passes": 2}),
    # Decoupled clip at its best, beside itself.
    "decoupled_clip_rate": ("decoupled_clip", "decoupled_clip", {"actor.learning_rate": 1.0e-3}),
    "decoupled_clip_passes": ("decoupled_clip", "decoupled_clip", {"actor.passes": 2}),
    "decoupled_clip_guided": (
        "decoupled_clip",
        "decoupled_clip",
        {
            "actor.chain": {"num_attempts": 2, "draws": 8, "feedback_free_share": 0.5},
            "actor.num_iterations": 14,
        },
    ),
}

BENCHMARK = Benchmark("levers", __doc__, measure_of("dense", LEVERS), seeds=(3, 4), options={"levers": ""})

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
