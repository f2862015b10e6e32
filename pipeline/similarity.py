"""How alike tasks are by the words of what they ask: the most similar one, and groups of similar ones."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.types import Task

MIN_COSINE = 0.8
"""From which on two tasks are similar (start value)."""
MIN_GROUP = 4
"""Rollouts that a group needs; smaller ones say less than the critic (start value)."""
BLOCK = 1024
"""Texts that are compared with all others at once: what is held in memory is a block's cosines."""


def asked_by(task: Task) -> str:
    """Returns what a task asks; a system message, which tasks share, counts only where nobody else speaks."""
    said = [message for message in task.prompt if message["role"] != "system"]
    return " ".join(message["content"] for message in said or task.prompt)


def most_similar(texts: Sequence[str], others: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the place [N] of each text's most similar one of the others, and their cosine [N] in [0, 1].

    Rarity is counted over both lists. Of equally similar ones the first counts.

    Example:
        >>> places, cosines = most_similar(["add 3 and 4"], ["where is Rome", "add 3 and 5"])
        >>> int(places[0]), round(float(cosines[0]), 2)
        (1, 0.63)
    """
    rows = _tf_idf([*texts, *others])
    mine, theirs = rows[: len(texts)], rows[len(texts) :].T.tocsc()
    places, cosines = [], []
    for first in range(0, len(texts), BLOCK):
        block = (mine[first : first + BLOCK] @ theirs).toarray()
        places.append(block.argmax(axis=1))
        cosines.append(block.max(axis=1))
    return np.concatenate(places), np.minimum(np.concatenate(cosines), 1.0)


def similar_groups(texts: Sequence[str]) -> list[list[int]]:
    """Returns the places of N texts in groups, and one by one where too few are similar.

    A group is a text and all later ones, not in a group yet, with a cosine of at least .8 to it. Who is in
    one follows from the texts alone, so no baseline made of a group's other rewards is chosen by an outcome.
    Equal texts are always together.

    Example:
        >>> similar_groups(["add 3 and 4"] * 4 + ["where is Rome"])
        [[0, 1, 2, 3], [4]]
    """
    if not texts:
        return []
    unique = list(dict.fromkeys(texts))
    places: dict[str, list[int]] = {text: [] for text in unique}
    for place, text in enumerate(texts):
        places[text].append(place)
    rows = _tf_idf(unique)
    left, groups = np.ones(len(unique), dtype=bool), list[list[int]]()
    for first in range(len(unique)):
        if not left[first]:
            continue
        cosines = (rows @ rows[first].T).toarray()[:, 0]
        near = left & (cosines >= MIN_COSINE)
        near[first] = True
        of = sorted(place for i in np.flatnonzero(near) for place in places[unique[i]])
        if len(of) < MIN_GROUP:  # those that are near may still be in the group of another
            of = places[unique[first]]
            near = np.arange(len(unique)) == first
        left &= ~near
        groups += [of] if len(of) >= MIN_GROUP else [[place] for place in of]
    return groups


def _tf_idf(texts: Sequence[str]) -> Any:
    """Returns [N, words] sparse vectors of length 1: term frequency times inverse document frequency.

    Words are runs of letters and digits, single ones included; single signs, where no text has a word.
    Source: Salton and Buckley (1988), as scikit-learn smooths it.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    word = r"\w+" if any(re.search(r"\w", text) for text in texts) else r"\S"
    return TfidfVectorizer(token_pattern=f"(?u){word}").fit_transform(texts)
