"""What pairs are made of: rollouts sorted by reward; answers of training and held-out clusters apart."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.errors import ArtifactError, ExitCode
from pipeline.matching import CHOSEN_ABOVE, REJECTED_BELOW, matched
from pipeline.similarity import asked_by
from pipeline.training.stored.stopping import held_out_clusters
from pipeline.types import Answer, Pair, Rollout, Task

NEXT = "Next: more rollouts (rollouts.num_tasks, rollouts.chain), or rows in preferences.recorded"


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
        elif r.reward > CHOSEN_ABOVE:
            (found.guided if r.guided else found.chosen).append(r)
        elif r.reward >= REJECTED_BELOW:
            found.left_out["reward_between"] += 1
        elif r.guided:  # there are enough failures after the bare prompt
            found.left_out["guided_failure"] += 1
        else:
            found.rejected.append(r)
    for side, bound, number in (
        ("chosen", f"more than {CHOSEN_ABOVE}", len(found.chosen) + len(found.guided)),
        ("rejected", f"less than {REJECTED_BELOW}, after the bare prompt", len(found.rejected)),
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


def pairs_of(
    chosen: Sequence[Answer], rejected: Sequence[Answer], tasks: Mapping[str, Task], seed: int
) -> list[Pair]:
    """Returns pairs of answers, matched among training clusters and among held-out ones."""
    texts = {name: asked_by(task) for name, task in tasks.items()}
    held = held_out_of([[tasks[a.task_id].cluster for a in side] for side in (chosen, rejected)], seed)

    def of(side: Sequence[Answer], held_out: bool) -> list[Answer]:
        return [answer for answer in side if (tasks[answer.task_id].cluster in held) == held_out]

    return [
        pair
        for held_out in (False, True)
        for pair in matched(of(chosen, held_out), of(rejected, held_out), texts, held_out=held_out)
    ]


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


def check_both(pairs: Sequence[Pair]) -> None:
    """Raises ArtifactError, code QUALITY, if no pair is to be learnt from, or none to look at."""
    held_out = sum(pair.held_out for pair in pairs)
    if not 0 < held_out < len(pairs):
        raise ArtifactError(
            f"{len(pairs)} pairs, of which {held_out} are of held-out clusters: dpo needs some to learn from "
            f"and others to know when to stop. {NEXT}",
            code=ExitCode.QUALITY,
        )


def counts_of(pairs: Sequence[Pair]) -> dict[str, dict[str, int]]:
    """Returns how many pairs are trained on and held out, by what their answers share."""
    return {
        name: dict(Counter(pair.match for pair in pairs if pair.held_out == held_out))
        for name, held_out in (("train", False), ("held_out", True))
    }
