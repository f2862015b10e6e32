"""Which chosen answer is held against which rejected one: after one prompt, of one task, of similar tasks."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.preferences.similarity import most_similar
from pipeline.types import PairMatch

MIN_CHOSEN, MAX_REJECTED = 0.7, 0.3
"""Rewards from which an answer is chosen, and up to which it is rejected (start values)."""
MIN_SIMILARITY = 0.8
"""Cosine from which two tasks are similar (start value)."""


@dataclass(frozen=True, slots=True)
class Rated:
    """An answer that is to be matched."""

    answer_id: str
    task_id: str
    prompt: tuple[int, ...]  # token ids before it


@dataclass(frozen=True, slots=True)
class Match:
    """Two answers of a pair, by their places in the lists given."""

    chosen: int
    rejected: int
    match: PairMatch
    similarity: float  # of their tasks: 1 of the same one


Wanted = tuple[Hashable, float] | None
"""The key of the partners that an answer wants, and how similar they are; None: nobody will do."""


def matched(chosen: Sequence[Rated], rejected: Sequence[Rated], texts: Mapping[str, str]) -> list[Match]:
    """Returns pairs in which each answer has a partner, if there is one: as near as it can be.

    First after the same prompt, then of the same task, then of the most similar task that has one, where the
    cosine of their texts is at least .8. Whoever has a partner looks no further. Of equally near partners the
    one in the fewest pairs is taken, so the scarcer side is repeated as evenly as it can be: 1 chosen and 3
    rejected answers make 3 pairs.

    Args:
        chosen: answers with a high reward.
        rejected: answers with a low one.
        texts: task_id -> what it asks.
    """
    pairs = _Pairs(len(chosen), len(rejected))
    sides = chosen, rejected
    prompts = [[(answer.task_id, answer.prompt) for answer in side] for side in sides]
    tasks = [[answer.task_id for answer in side] for side in sides]
    pairs.add("prompt", prompts, [[(key, 1.0) for key in keys] for keys in prompts])
    pairs.add("task", tasks, [[(key, 1.0) for key in keys] for keys in tasks])
    wanted: list[list[Wanted]] = []
    for side in (0, 1):
        alone = {tasks[side][i] for i in pairs.unpaired(side)}
        nearest = _nearest(alone, set(tasks[1 - side]), texts)
        wanted.append([nearest.get(task) for task in tasks[side]])
    pairs.add("similar", tasks, wanted)
    return pairs.found


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
        if cosine >= MIN_SIMILARITY
    }


class _Pairs:
    """Pairs that are found, and how often each answer is in one; side 0 is chosen, side 1 rejected."""

    def __init__(self, num_chosen: int, num_rejected: int) -> None:
        self.found: list[Match] = []
        self._uses = [0] * num_chosen, [0] * num_rejected

    def unpaired(self, side: int) -> list[int]:
        """Returns the answers of a side without a partner."""
        return [i for i, uses in enumerate(self._uses[side]) if not uses]

    def add(
        self, match: PairMatch, keys: Sequence[Sequence[Hashable]], wanted: Sequence[Sequence[Wanted]]
    ) -> None:
        """Gives answers without a partner one whose key is wanted; the chosen ones first.

        Of each side, `keys` and `wanted` have an entry for each answer.
        """
        for side, other in ((0, 1), (1, 0)):
            partners = defaultdict[Hashable, list[int]](list)
            for place, key in enumerate(keys[other]):
                partners[key].append(place)
            for i in self.unpaired(side):
                want = wanted[side][i]
                if want is None or want[0] not in partners:
                    continue
                j = min(partners[want[0]], key=lambda place: (self._uses[other][place], place))
                self._uses[side][i] += 1
                self._uses[other][j] += 1
                places = (i, j) if side == 0 else (j, i)
                self.found.append(Match(*places, match, want[1]))
