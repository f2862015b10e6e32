"""Trains a policy by direct preference optimisation on the pairs of `preferences`.

It starts from sft's policy, or from that of the stored phase where there is one; that policy is the reference
too. `evaluation.of: dpo` sets what comes out beside sft's policy.
"""

import sys

from pipeline.artifacts.plan import in_shards
from pipeline.columns import REFERENCE
from pipeline.runner import Plan, Stage, Start, run_stage
from stages.settings import Config
from stages.wiring.preflight import check_installed, trains_in_ranks


def plan(start: Start[Config]) -> Plan[None]:
    """Plans the reference's log-probabilities of all pairs, which the first epoch waits for."""
    pairs = start.inputs["preferences"].table("pairs").select(["pair_id", "held_out"]).to_pylist()
    check_installed(start.config, training=True)
    return Plan(
        items=[
            list(shard)
            for shard in in_shards([p["pair_id"] for p in pairs], start.config.run.rollouts_per_shard)
        ],
        tables=(REFERENCE,),
        unit="pairs",
        estimate={
            "held_out": sum(pair["held_out"] for pair in pairs),
            "epochs_at_most": start.config.dpo.max_epochs,
        },
        work=None,
    )


STAGE = Stage(
    name="dpo",
    code_version=1,
    inputs=lambda config: (
        *("sft", "preferences"),
        *(("stored",) if config.stored.objective.kind != "none" else ()),
    ),
    sections=("dpo", "training", "tasks", "prompt.style", "prompt.thinking"),
    plan=plan,
    make="stages.bodies.dpo:make",
    has_ranks=trains_in_ranks,
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
