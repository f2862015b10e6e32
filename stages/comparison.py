"""Holds arms against each other at equal budget: runs of the chain, each with several seeds.

An arm is nothing but settings over the rest of the configuration. Its runs, `arms/<arm>-seed<k>` beside this
stage, are ordinary ones; what several of them share is made once.
"""

import sys

from pipeline.runner import Plan, Stage, Start, run_stage
from pipeline.runs import ARMS, MAIN_CHAIN
from stages.settings import Config
from stages.wiring.arms import ArmRun, made_once, num_side_by_side, runs_of, stage_of


def plan(start: Start[Config]) -> Plan[list[ArmRun]]:
    """Makes the settings of every run, and so refuses an arm that cannot be."""
    runs = runs_of(start.config, (start.run_dir / ARMS).resolve())
    estimate = {
        "arms": len(start.config.comparison.arms),
        "seeds": len(start.config.comparison.seeds),
        "stages": sum(1 for _ in made_once(runs)),
        "side_by_side": num_side_by_side(start.config),
    }
    return Plan(items=[[run.name] for run in runs], unit="runs", estimate=estimate, work=runs)


OF_RUNS = {section for name in MAIN_CHAIN[:-1] for section in stage_of(name).sections}
STAGE = Stage(
    name="comparison",
    code_version=5,
    inputs=lambda config: (),
    sections=("comparison", *sorted(OF_RUNS)),
    plan=plan,
    make="stages.bodies.comparison:make",
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
