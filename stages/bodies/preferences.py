"""Sorts, strips and matches rollouts to pairs; or encodes recorded preferences as pairs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from env.play.requests import EpisodeRequest
from env.solutions import Solution
from pipeline.ids import digest, seed_of
from pipeline.matching import pair_of
from pipeline.models.policy import load_tokenizer
from pipeline.rows import BadRowError, LeftOut
from pipeline.runner import Start
from pipeline.tables import pairs_table
from pipeline.types import Answer, Pair, Rollout
from stages.bodies.solutions import solution_maker
from stages.preferences import Work
from stages.settings import Config
from stages.wiring.inputs import tasks_by_id
from stages.wiring.left_out import tell_left_out
from stages.wiring.preference_data import (
    answer_of,
    check_both,
    counts_of,
    held_out_of,
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
    check_both(pairs)
    for shard in start.shards.to_do():
        start.shards.commit(shard.index, {"pairs": pairs_table(pairs)}, done=done, skipped=skipped)
    report = _report(pairs) | more
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
    tokenizer = load_tokenizer(start.inputs["sft"].path("policy"))
    make_rollout = solution_maker(start, "recorded")
    known = dict[tuple[str, str], Answer | BadRowError]()  # an answer may be in many pairs

    def encoded(solution: Solution) -> Answer:
        assert solution.reward is not None  # those of preferences have one
        key = solution.task.task_id, solution.text
        if key not in known:
            try:
                known[key] = judged(solution)
            except BadRowError as error:
                known[key] = error
        if isinstance(found := known[key], BadRowError):
            raise found
        return replace(found, reward=solution.reward)

    def judged(solution: Solution) -> Answer:
        task = solution.task
        name = digest("recorded preference", task.task_id, solution.text)
        seed = seed_of(start.seed, "recorded preference", task.task_id)
        request = EpisodeRequest(name, task, name, 0, 0, 0, seed, kind="recorded")
        rollout = make_rollout(solution, request)
        if not rollout.steps:
            raise BadRowError("infra_error", f"the environment could not play it: {rollout.env_status}")
        return answer_of(replace(rollout, reward=solution.reward), tokenizer)

    clusters = [solution.task.cluster for solution, _ in work.recorded]
    held, pairs, left_out = held_out_of([clusters, clusters], start.seed), list[Pair](), list(work.left_out)
    with start.progress(len(work.recorded), "preferences") as advance:
        for solutions in work.recorded:
            start.stop_if_asked()
            advance(1)
            try:
                chosen, rejected = map(encoded, solutions)
            except BadRowError as error:
                left_out.append(solutions[0].row.left_out(error))
            else:
                pairs.append(pair_of(chosen, rejected, held_out=solutions[0].task.cluster in held))
    return pairs, left_out


def _report(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Returns what report.json says of pairs: what answers share, their lengths, who is repeated."""
    sides = {side: [getattr(pair, side) for pair in pairs] for side in ("chosen", "rejected")}
    return {
        "pairs": counts_of(pairs),
        "guided_chosen": sum(answer.guided for answer in sides["chosen"]),
        "pairs_of_one_answer_at_most": {
            side: max(Counter(answer.answer_id for answer in of).values()) for side, of in sides.items()
        },
        "tokens_mean": {side: fmean(sum(a.loss_mask) for a in of) for side, of in sides.items()},
        "similarity_min": min(pair.similarity for pair in pairs),
        "margin_mean": fmean(pair.margin for pair in pairs),
    }
