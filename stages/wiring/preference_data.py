"""What pairs are made of: rollouts sorted by reward; answers of training and held-out clusters apart."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.errors import ArtifactError, ExitCode
from pipeline.ids import digest
from pipeline.preferences.matching import MAX_REJECTED, MIN_CHOSEN, Rated, matched
from pipeline.training.stored.stopping import held_out_clusters
from pipeline.types import Answer, Pair, PairMatch, Rollout, Task

NEXT = "Next: more rollouts (rollouts.num_tasks, rollouts.chain), or preferences.recorded"


@dataclass(frozen=True, slots=True)
class Sorted:
    """Rollouts by what they are good for."""

    chosen: list[Rollout] = field(default_factory=list)  # bare
    guided: list[Rollout] = field(default_factory=list)  # chosen ones, after feedback
    rejected: list[Rollout] = field(default_factory=list)  # bare
    left_out: Counter[str] = field(default_factory=Counter)  # others, by why


def sorted_rollouts(rollouts: Sequence[Rollout]) -> Sorted:
    """Returns rollouts by reward and prompt; raises ArtifactError, code QUALITY, if a side has none."""
    found = Sorted()
    for r in rollouts:
        if r.reward is None or not r.steps:
            found.left_out["ungraded"] += 1
        elif r.reward >= MIN_CHOSEN:
            (found.guided if r.guided else found.chosen).append(r)
        elif r.reward > MAX_REJECTED:
            found.left_out["reward_between"] += 1
        elif r.guided:  # there are enough failures after the bare prompt
            found.left_out["guided_failure"] += 1
        else:
            found.rejected.append(r)
    for side, bound, number in (
        ("chosen", f"at least {MIN_CHOSEN}", len(found.chosen) + len(found.guided)),
        ("rejected", f"at most {MAX_REJECTED}, after the bare prompt", len(found.rejected)),
    ):
        if not number:
            raise ArtifactError(
                f"none of {len(rollouts)} rollouts has a reward of {bound}, so none can be {side}. {NEXT}",
                code=ExitCode.QUALITY,
            )
    return found


def answer_of(rollout: Rollout, tokenizer: Any, *, guided: bool = False) -> Answer:
    """Returns a graded rollout as one side of a pair."""
    assert rollout.reward is not None
    prompt, response = (
        tokenizer.decode(list(ids), skip_special_tokens=False)
        for ids in (rollout.prompt_token_ids, rollout.response_token_ids)
    )
    return Answer(
        answer_id=rollout.rollout_id,
        task_id=rollout.task_id,
        reward=rollout.reward,
        guided=guided,
        prompt=prompt,
        text=response,
        prompt_token_ids=rollout.prompt_token_ids,
        response_token_ids=rollout.response_token_ids,
        loss_mask=rollout.loss_mask,
    )


def pair_of(
    chosen: Answer, rejected: Answer, *, held_out: bool, match: PairMatch = "prompt", similarity: float = 1.0
) -> Pair:
    """Returns two answers as a pair."""
    name = digest("pair", chosen.answer_id, rejected.answer_id)
    margin = chosen.reward - rejected.reward
    return Pair(name, match, similarity, margin, held_out, chosen, rejected)


def pairs_of(
    chosen: Sequence[Answer], rejected: Sequence[Answer], tasks: Mapping[str, Task], seed: int
) -> list[Pair]:
    """Returns pairs of answers, matched among training clusters and among held-out ones.

    Raises ArtifactError, code QUALITY, if either has none.
    """
    texts = {name: asked_by(task) for name, task in tasks.items()}
    held = held_out_of([[tasks[a.task_id].cluster for a in side] for side in (chosen, rejected)], seed)
    pairs = []
    for held_out in (False, True):
        sides = [
            [a for a in side if (tasks[a.task_id].cluster in held) == held_out] for side in (chosen, rejected)
        ]
        rated = [[Rated(a.answer_id, a.task_id, a.prompt_token_ids) for a in side] for side in sides]
        for found in matched(rated[0], rated[1], texts):
            both = sides[0][found.chosen], sides[1][found.rejected]
            pairs.append(pair_of(*both, held_out=held_out, match=found.match, similarity=found.similarity))
    return check_both(pairs)


def asked_by(task: Task) -> str:
    """Returns what a task asks; a system message, which tasks share, would make all alike."""
    return " ".join(message["content"] for message in task.prompt if message["role"] != "system")


def held_out_of(clusters: Sequence[Sequence[str]], seed: int) -> set[str]:
    """Returns the clusters that are held out, by hash: a tenth of those that have answers of both sides.

    `clusters` are those of chosen answers, and of rejected ones. Where fewer than two have both, pairs lie
    across clusters, and it is a tenth of those that have any. Raises ArtifactError, code QUALITY, if there
    is one cluster alone.
    """
    sides = [set(side) for side in clusters]
    both, any_ = sides[0] & sides[1], sides[0] | sides[1]
    if len(any_) < 2:
        raise ArtifactError(
            f"all answers are of one cluster ({', '.join(any_)}); dpo learns from some, another says when to "
            f"stop, so 2 are needed. {NEXT}",
            code=ExitCode.QUALITY,
        )
    return held_out_clusters(both if len(both) >= 2 else any_, seed)


def check_both(pairs: list[Pair]) -> list[Pair]:
    """Returns the pairs; raises ArtifactError, code QUALITY, if none is to be learnt from, or to look at."""
    held_out = sum(pair.held_out for pair in pairs)
    if not 0 < held_out < len(pairs):
        raise ArtifactError(
            f"{len(pairs)} pairs, of which {held_out} are of held-out clusters: dpo needs some to learn from "
            f"and others to know when to stop. {NEXT}",
            code=ExitCode.QUALITY,
        )
    return pairs
