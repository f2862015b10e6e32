"""What the rollouts stage makes of recorded solutions: their ids and shards, before anything is encoded."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from env.play.requests import EpisodeRequest
from env.solutions import Solution, read_solutions
from pipeline.artifacts.plan import in_shards
from pipeline.errors import ArtifactError
from pipeline.ids import digest, rollout_id, seed_of
from pipeline.rows import LeftOut
from pipeline.runner import Start
from pipeline.types import Rollout, Task
from stages.settings import Config


@dataclass(frozen=True, slots=True)
class Recorded:
    """Solutions in shards, each with what it becomes, and rows that are none."""

    shards: list[list[tuple[Solution, EpisodeRequest]]] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)  # they are accounted for in the first shard
    policy_digest: str = ""  # stands for whoever wrote them

    @property
    def items(self) -> list[list[str]]:
        """Ids for the plan, a list for each shard."""
        ids = [[request.rollout_id for _, request in shard] for shard in self.shards]
        return [ids[0] + [row.place for row in self.left_out], *ids[1:]] if ids else []

    @property
    def estimate(self) -> dict[str, int]:
        """What a plan says of them; nothing if there are none."""
        found = {"recorded": sum(map(len, self.shards)), "rows_left_out": len(self.left_out)}
        return found if self.shards else {}


def recorded_of(start: Start[Config], tasks: Sequence[Task]) -> Recorded:
    """Returns the configured solutions of some tasks; those of one task are a group, a draw each."""
    settings = start.config.rollouts
    if settings.solutions is None:
        return Recorded()
    solutions, left_out = read_solutions(settings.solutions, tasks)
    draws: Counter[str] = Counter()
    asked = []
    for solution in solutions:
        task_id, draw = solution.task.task_id, draws[solution.task.task_id]
        draws[task_id] += 1
        group = digest("recorded", start.stage_key, task_id)  # apart from the group that is played
        seed = seed_of(start.seed, "recorded", task_id, draw)
        name = rollout_id(group, 0, draw)
        request = EpisodeRequest(name, solution.task, group, 0, 0, draw, seed, kind="recorded")
        asked.append((solution, request))
    said = [[s.task.task_id, s.key, s.reward] for s in solutions]
    shards = [list(shard) for shard in in_shards(asked, start.config.run.rollouts_per_shard)]
    return Recorded(shards, left_out, f"recorded:{digest('recorded', said)}")


def refuse_recorded(rollouts: list[Rollout], setting: str, why: str, instead: str) -> None:
    """Raises ArtifactError if any of these rollouts is a recorded solution, which `setting` cannot use."""
    number = sum(not rollout.has_logprobs for rollout in rollouts)
    if number:
        raise ArtifactError(
            f"{setting} {why}, but {number} of {len(rollouts)} rollouts are recorded solutions "
            "(rollouts.solutions), by another policy and without log-probabilities; labels, critic and "
            f"stored.objective.kind = likelihood, advantage_weighted or v_dapo take them. Next: {instead}"
        )
