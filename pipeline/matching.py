"""Which chosen answer is held against which rejected one: after one prompt, of one task, of similar tasks."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import product
from typing import Any

from pipeline.ids import digest
from pipeline.similarity import MIN_COSINE, most_similar
from pipeline.types import Answer, Pair, PairMatch

CHOSEN_ABOVE, REJECTED_BELOW = 0.7, 0.3
"""Rewards above which an answer is chosen, and below which it is rejected (start values)."""
NEARER_FIRST: tuple[tuple[PairMatch, Callable[[Answer], Any]], ...] = (
    ("prompt", lambda answer: (answer.task_id, answer.prompt_token_ids)),
    ("task", lambda answer: answer.task_id),
    ("similar", lambda answer: answer.task_id),
)
"""What partners share, and what says so; of similar tasks, the most similar one."""


def matched(
    chosen: Sequence[Answer], rejected: Sequence[Answer], texts: Mapping[str, str], *, held_out: bool = False
) -> list[Pair]:
    """Returns pairs in which each answer has a partner, if there is one: as near as it can be.

    First after the same prompt, then of the same task, then of the most similar task that has one, where the
    cosine of their texts is at least .8. Whoever has a partner looks no further. Of equally near partners the
    one in the fewest pairs is taken, so the scarcer side is repeated as evenly as it can be: 1 chosen and 3
    rejected answers make 3 pairs.

    Args:
        chosen: answers with a high reward.
        rejected: answers with a low one.
        texts: task_id -> what it asks.
        held_out: of all pairs.
    """
    sides, found = (chosen, rejected), list[Pair]()
    uses = [0] * len(chosen), [0] * len(rejected)
    for (match, key), side in product(NEARER_FIRST, (0, 1)):
        other, partners = 1 - side, defaultdict[Any, list[int]](list)
        for place, answer in enumerate(sides[other]):
            partners[key(answer)].append(place)
        alone = {i: key(sides[side][i]) for i, number in enumerate(uses[side]) if not number}
        near = {name: (name, 1.0) for name in alone.values()}
        if match == "similar":
            near = _nearest(near, partners, texts)
        for i, name in alone.items():
            wanted, similarity = near.get(name, (None, 0.0))
            if wanted not in partners:
                continue
            j = min(partners[wanted], key=uses[other].__getitem__)
            uses[side][i] += 1
            uses[other][j] += 1
            both = (chosen[i], rejected[j]) if side == 0 else (chosen[j], rejected[i])
            found.append(pair_of(*both, match=match, similarity=similarity, held_out=held_out))
    return found


def pair_of(
    chosen: Answer, rejected: Answer, *, held_out: bool, match: PairMatch = "prompt", similarity: float = 1.0
) -> Pair:
    """Returns two answers as a pair."""
    name = digest("pair", chosen.answer_id, rejected.answer_id)
    return Pair(name, match, similarity, chosen.reward - rejected.reward, held_out, chosen, rejected)


def _nearest(
    tasks: Collection[str], others: Collection[str], texts: Mapping[str, str]
) -> dict[str, tuple[str, float]]:
    """Returns task -> the most similar of the other tasks and their cosine, where it is high enough."""
    if not tasks or not others:
        return {}
    mine, theirs = sorted(tasks), sorted(others)
    places, cosines = most_similar([texts[t] for t in mine], [texts[t] for t in theirs])
    return {
        task: (theirs[place], float(cosine))
        for task, place, cosine in zip(mine, places, cosines, strict=True)
        if cosine >= MIN_COSINE
    }
