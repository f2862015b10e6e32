"""Sorts, strips and matches rollouts to pairs; or encodes recorded preferences as pairs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from env.play.coder import Coder
from env.play.recorded import recorded_rollout
from env.play.requests import EpisodeRequest
from env.solutions import Solution
from pipeline.artifacts.runner import Start
from pipeline.ids import digest, seed_of
from pipeline.models.policy import load_policy, load_tokenizer
from pipeline.rows import BadRowError, LeftOut
from pipeline.tables import pairs_table
from pipeline.types import Answer, Pair, Rollout
from stages.preferences import Work
from stages.settings import Config
from stages.wiring.build import silent_engine
from stages.wiring.inputs import tasks_by_id
from stages.wiring.left_out import tell_left_out
from stages.wiring.player import make_player
from stages.wiring.preference_data import (
    answer_of,
    check_both,
    held_out_of,
    pair_of,
    pairs_of,
    sorted_rollouts,
)
from stages.wiring.stored_data import Material, stripped_guided


def make(start: Start[Config], work: Work) -> None:
    """Makes all pairs, in one shard: matching looks at every answer."""
    if work.recorded:
        pairs, left_out = _of_preferences(start, work)
        done, skipped = len(pairs), Counter(row.kind for row in left_out)
        more: dict[str, Any] = {"left_out": tell_left_out(start, left_out)}
    else:
        pairs, skipped, told = _of_rollouts(start, work.rollouts)
        done = len(work.rollouts) - skipped.total()
        more = {"left_out": dict(skipped), "told_words": dict(told.most_common(10))}
    for shard in start.shards.to_do():
        start.shards.commit(shard.index, {"pairs": pairs_table(pairs)}, done=done, skipped=skipped)
    report = _report(pairs, more)
    start.say(f"pairs by what their answers share: {report['pairs']}")
    start.finish(report=report)


def _of_rollouts(
    start: Start[Config], rollouts: Sequence[Rollout]
) -> tuple[list[Pair], Counter[str], Counter[str]]:
    """Returns the pairs, why rollouts are in none, and what only feedback told some of these."""
    tokenizer, tasks = load_tokenizer(start.inputs["sft"].path("policy")), tasks_by_id(start)
    found = sorted_rollouts(rollouts)
    material = Material([*found.chosen, *found.rejected], found.guided, {}, tasks, found.left_out)
    stripped, told = stripped_guided(start.config, material, tokenizer)
    chosen = [answer_of(r, tokenizer) for r in found.chosen]
    chosen += [answer_of(r, tokenizer, guided=True) for r in stripped]
    rejected = [answer_of(r, tokenizer) for r in found.rejected]
    pairs = pairs_of(chosen, rejected, tasks, start.seed)
    used = {answer.answer_id for pair in pairs for answer in (pair.chosen, pair.rejected)}
    skipped = found.left_out + Counter(
        told_by_feedback=len(found.guided) - len(stripped),
        no_partner=len(chosen) + len(rejected) - len(used),
    )
    return pairs, skipped, told


def _of_preferences(start: Start[Config], work: Work) -> tuple[list[Pair], list[LeftOut]]:
    """Returns a pair of each recorded preference whose answers fit, and the rows that are none."""
    policy = load_policy(start.inputs["sft"].path("policy"))
    player = make_player(start.config, policy, engine=silent_engine(start.config, policy, "recorded"))
    coder = Coder(policy.tokenizer, player.style.stop_token)

    def encoded(solution: Solution) -> Answer:
        task = solution.task
        name = digest("recorded preference", task.task_id, solution.text)
        seed = seed_of(start.seed, "recorded preference", task.task_id)
        request = EpisodeRequest(name, task, name, 0, 0, 0, seed, kind="recorded")
        rollout = recorded_rollout(replace(solution, reward=None), request, player, coder)
        if not rollout.steps:
            raise BadRowError("infra_error", f"the environment could not play it: {rollout.env_status}")
        return answer_of(replace(rollout, reward=solution.reward), policy.tokenizer)

    clusters = [solution.task.cluster for solution, _ in work.recorded]
    held, pairs, left_out = held_out_of([clusters, clusters], start.seed), list[Pair](), list(work.left_out)
    for solutions in work.recorded:
        try:
            chosen, rejected = map(encoded, solutions)
            pairs.append(pair_of(chosen, rejected, held_out=solutions[0].task.cluster in held))
        except BadRowError as error:
            row = solutions[0].row
            left_out.append(LeftOut(row.source, row.number, error.kind, str(error)))
    return check_both(pairs), left_out


def _report(pairs: Sequence[Pair], more: Mapping[str, Any]) -> dict[str, Any]:
    """Returns report.json of the stage: pairs by what their answers share, and how often one is repeated."""
    uses = [Counter(getattr(pair, side).answer_id for pair in pairs) for side in ("chosen", "rejected")]
    return {
        "pairs": {
            name: dict(Counter(pair.match for pair in pairs if pair.held_out == held_out))
            for name, held_out in (("train", False), ("held_out", True))
        },
        "guided_chosen": sum(pair.chosen.guided for pair in pairs),
        "pairs_of_one_answer_at_most": {
            side: max(of.values()) for side, of in zip(("chosen", "rejected"), uses, strict=True)
        },
        "similarity_min": min(pair.similarity for pair in pairs),
        "margin_mean": sum(pair.margin for pair in pairs) / len(pairs),
        **more,
    }
