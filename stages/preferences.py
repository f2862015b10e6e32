"""Makes pairs of a chosen and a rejected answer, from rollouts or from recorded preferences.

A rollout with a reward above .7 is chosen, one below .3 rejected. Each is paired with one after
the same prompt, else with one of its task, else with one of the most similar task. `dpo` learns from them.
"""

import sys
from dataclasses import dataclass

from env.preferences import read_preferences
from env.solutions import Solution
from pipeline.columns import PAIRS
from pipeline.rows import LeftOut
from pipeline.runner import Plan, Stage, Start, run_stage
from pipeline.types import Rollout
from stages.settings import Config
from stages.wiring.inputs import rollouts_of, tasks_of_split
from stages.wiring.preference_data import sorted_rollouts


@dataclass(frozen=True, slots=True)
class Work:
    """What pairs are made of: rollouts, or rows of recorded preferences."""

    rollouts: list[Rollout]
    recorded: list[tuple[Solution, Solution]]
    left_out: list[LeftOut]


def plan(start: Start[Config]) -> Plan[Work]:
    """Reads what there is, and refuses rollouts of which none is chosen, or none rejected."""
    source = start.config.preferences.recorded
    if source is None:
        rollouts = rollouts_of(start.inputs["rollouts"])
        found = sorted_rollouts(rollouts)
        return Plan(
            items=[[r.rollout_id for r in rollouts]],
            tables=(PAIRS,),
            unit="rollouts",
            estimate={"chosen": len(found.chosen) + len(found.guided), "rejected": len(found.rejected)},
            work=Work(rollouts, [], []),
        )
    recorded, left_out = read_preferences(source, tasks_of_split(start, "train"))
    rows = [chosen.row for chosen, _ in recorded]
    return Plan(
        items=[[f"{row.source}: row {row.number}" for row in rows] + [row.place for row in left_out]],
        tables=(PAIRS,),
        unit="rows",
        estimate={"preferences": len(recorded), "left_out": len(left_out)},
        work=Work([], recorded, left_out),
    )


STAGE = Stage(
    name="preferences",
    code_version=2,
    inputs=lambda config: ("tasks", "sft", *(("rollouts",) if config.preferences.recorded is None else ())),
    sections=("preferences", "sampling", "prompt", "tasks"),
    files=lambda config: config.preferences.recorded.files if config.preferences.recorded else [],
    plan=plan,
    make="stages.bodies.preferences:make",
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
