"""Splits traffic between what is served and a round's candidate, and decides which of them is served next.

Traffic is held-out tasks, routed by chance: of every five requests one goes to the candidate. The verdict is
part of the stage's content; nothing is served before it is committed (pipeline/served.py).
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from env.play.chains import Group, plan_groups
from pipeline.artifacts.plan import in_shards
from pipeline.columns import ROLLOUTS, STEPS
from pipeline.errors import ConfigError
from pipeline.ids import seed_of
from pipeline.promotion import LOOK, LOOKS, ONE_IN
from pipeline.runner import Plan, Stage, Start, run_stage
from pipeline.types import Task
from stages.settings import Config
from stages.wiring.inputs import policies_of, tasks_of_split
from stages.wiring.preflight import check_installed, check_plays_weights

ARMS = ("baseline", "candidate")


@dataclass(frozen=True, slots=True)
class Part:
    """What is committed together: requests of one arm before one look."""

    look: int
    arm: str
    groups: Sequence[Group]


def traffic(tasks: Sequence[Task], *, stage_key: str, seed: int) -> list[list[tuple[str, Group]]]:
    """Returns (arm, its request) in order, a list for each look; tasks are visited in passes over all."""
    rng, requests = Random(seed), list[Group]()
    while len(requests) < LOOKS * LOOK:
        order, number = rng.sample(list(tasks), len(tasks)), len(requests) // len(tasks)
        requests += plan_groups(
            order, stage_key=stage_key, seed=seed, iteration=number, num_attempts=1, draws=1
        )
    chosen = {block + rng.randrange(ONE_IN) for block in range(0, LOOKS * LOOK, ONE_IN)}
    routed = [(ARMS[place in chosen], requests[place]) for place in range(LOOKS * LOOK)]
    return [routed[look * LOOK : (look + 1) * LOOK] for look in range(LOOKS)]


def plan(start: Start[Config]) -> Plan[list[Part]]:
    """Plans all traffic up to the last look; what comes after a decision will be skipped."""
    if not start.config.run.round:
        raise ConfigError("promotion ends a round, and this run is none (run.round = 0). Next: make round")
    check_plays_weights(start.config, "promotion")
    tasks = [task for split in start.config.held_out for task in tasks_of_split(start, split)]
    seed = seed_of(start.config.run.sampling_seed, "promotion")
    routed = traffic(tasks, stage_key=start.stage_key, seed=seed)
    parts = [
        Part(look, arm, groups)
        for look, requests in enumerate(routed)
        for arm in ARMS
        for groups in in_shards([g for of, g in requests if of == arm], start.config.run.per_shard(1))
    ]
    check_installed(start.config, engine=True)
    return Plan(
        items=[[name for group in part.groups for name in group.rollout_ids] for part in parts],
        tables=(ROLLOUTS, STEPS),
        unit="rollouts",
        estimate={"tasks": len(tasks), "looks": LOOKS, "candidate": policies_of(start.config)["actor"][0]},
        work=parts,
    )


STAGE = Stage(
    name="promotion",
    code_version=4,
    inputs=lambda config: ("tasks", "sft", policies_of(config)["actor"][0]),
    sections=("run.round", "run.held_out", "engine", "sampling", "prompt", "tasks"),
    plan=plan,
    make="stages.bodies.promotion:make",
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
