"""What the rollouts stage makes of recorded solutions: their ids and shards, before anything is encoded."""

from collections import Counter
from dataclasses import dataclass

from env.play.requests import EpisodeRequest
from env.solutions import Solution, read_solutions
from pipeline.artifacts.plan import in_shards
from pipeline.artifacts.runner import Plan, Start
from pipeline.columns import ROLLOUTS, STEPS
from pipeline.errors import ArtifactError
from pipeline.ids import digest, group_id, rollout_id, seed_of
from pipeline.rows import LeftOut, Source
from pipeline.types import Rollout
from stages.settings import Config
from stages.wiring.inputs import tasks_of_split


@dataclass(frozen=True, slots=True)
class Recorded:
    """Solutions in shards, each with what it becomes, and rows that are none."""

    shards: list[list[tuple[Solution, EpisodeRequest]]]
    left_out: list[LeftOut]
    policy_digest: str  # stands for whoever wrote them


def plan_recorded(start: Start[Config], source: Source) -> Plan[Recorded]:
    """Returns the plan that makes a rollout of each solution of a training task; a draw each."""
    settings = start.config.rollouts
    tasks = tasks_of_split(start, "train")[: settings.num_tasks]
    solutions, left_out = read_solutions(source, settings.columns, tasks)
    draws: Counter[str] = Counter()
    asked = []
    for solution in solutions:
        task_id, draw = solution.task.task_id, draws[solution.task.task_id]
        draws[task_id] += 1
        group = group_id(start.stage_key, task_id, 0)
        seed = seed_of(start.seed, "recorded", task_id, 0, 0, draw)
        name = rollout_id(group, 0, draw)
        request = EpisodeRequest(name, solution.task, group, 0, 0, draw, seed, kind="recorded")
        asked.append((solution, request))
    said = [[s.task.task_id, s.text, s.reward] for s in solutions]
    shards = [list(shard) for shard in in_shards(asked, start.config.run.rollouts_per_shard)]
    items = [[request.rollout_id for _, request in shard] for shard in shards]
    items[0] += [f"{row.source}: row {row.row}" for row in left_out]
    return Plan(
        items=items,
        tables=(ROLLOUTS, STEPS),
        unit="rollouts",
        estimate={"recorded": len(solutions), "tasks": len(draws), "rows_left_out": len(left_out)},
        work=Recorded(shards, left_out, f"recorded:{digest('recorded', said)}"),
    )


def refuse_recorded(rollouts: list[Rollout], setting: str, why: str, instead: str) -> None:
    """Raises ArtifactError if any of these rollouts is a recorded solution, which `setting` cannot use."""
    number = sum(not rollout.has_logprobs for rollout in rollouts)
    if number:
        raise ArtifactError(
            f"{setting} {why}, but {number} of {len(rollouts)} rollouts are recorded solutions "
            "(rollouts.solutions), by another policy and without log-probabilities; labels, critic and "
            f"stored.objective.kind = likelihood or advantage_weighted take them. Next: {instead}"
        )
