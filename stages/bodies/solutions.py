"""Brings recorded solutions into the rollouts table: encoded for sft's policy, judged by the environment."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from env.chat.coder import Coder
from env.play.recorded import DISAGREES, recorded_rollout
from env.play.requests import EpisodeRequest
from env.play.shards import commit_rollouts
from env.play.units import Played
from env.solutions import Solution
from pipeline.models.policy import load_policy
from pipeline.rows import BadRowError
from pipeline.runner import Start
from pipeline.types import Rollout
from stages.settings import Config
from stages.wiring.inputs import rollouts_of
from stages.wiring.left_out import tell_left_out, tell_thoughts_lost
from stages.wiring.player import silent_player
from stages.wiring.solutions import Recorded


def bring_in(start: Start[Config], work: Recorded, first: int) -> dict[str, Any]:
    """Commits a rollout of each solution that fits, from shard `first` on; returns what the report says."""
    make, left_out = solution_maker(start, work.policy_digest), list(work.left_out)
    with start.shards.bar():
        for index, pairs in enumerate(work.shards, first):
            if start.shards.is_committed(index):
                continue
            made = list[Rollout]()
            skipped = Counter(row.kind for row in work.left_out) if index == first else Counter[str]()
            for solution, request in pairs:
                try:
                    made.append(make(solution, request))
                except BadRowError as error:
                    skipped[error.kind] += 1
                start.shards.item_done()
            commit_rollouts(start.shards, start.shards[index], Played(made, dict(skipped)))
    rollouts = [rollout for rollout in rollouts_of(start.shards) if not rollout.has_logprobs]
    there = {rollout.rollout_id for rollout in rollouts}
    for solution, request in (pair for shard in work.shards for pair in shard):
        if request.rollout_id not in there:  # an earlier start may have found out
            try:
                make(solution, request)
            except BadRowError as error:
                left_out.append(solution.row.left_out(error))
    disagreed = sum(any(event.code == DISAGREES for event in r.events) for r in rollouts)
    start.say(f"{len(rollouts)} recorded solutions; the verifier gives {disagreed} of them another reward")
    used = [solution for shard in work.shards for solution, request in shard if request.rollout_id in there]
    return {
        "recorded": len(rollouts),
        "left_out": tell_left_out(start, left_out),
        "thoughts_lost": tell_thoughts_lost(start, used, start.config.style()),
        DISAGREES: disagreed,
    }


def solution_maker(start: Start[Config], policy_digest: str) -> Callable[[Solution, EpisodeRequest], Rollout]:
    """Returns what makes a solution a rollout of sft's tokens, or raises BadRowError."""
    policy = load_policy(start.inputs["sft"].path("policy"))
    player = silent_player(start.config, policy, policy_digest)
    coder = Coder(policy.tokenizer, player.style.stop_token)

    def make(solution: Solution, request: EpisodeRequest) -> Rollout:
        return recorded_rollout(solution, request, player, coder)

    return make
