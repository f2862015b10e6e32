"""Groups of similar tasks, where each was attempted once or twice: what their rollouts earn is a baseline."""

from collections.abc import Sequence

import numpy as np

MIN_GROUP = 4
"""Rollouts that a group needs; smaller ones say less than the critic (start value)."""
MIN_COSINE = 0.8
"""From which on two tasks are similar (start value)."""


def similar_groups(texts: Sequence[str]) -> list[list[int]]:
    """Returns the places of N texts in groups, and one by one where too few are similar.

    A group is a text and all later ones, not in a group yet, with a cosine of at least .8 to it by TF-IDF of
    words. Who is in one follows from the texts alone, so no baseline made of a group's other rewards is
    chosen by an outcome. Equal texts are always together.

    Example:
        >>> similar_groups(["add 3 and 4"] * 4 + ["where is Rome"])
        [[0, 1, 2, 3], [4]]
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    if not texts:
        return []
    unique = list(dict.fromkeys(texts))
    places: dict[str, list[int]] = {text: [] for text in unique}
    for place, text in enumerate(texts):
        places[text].append(place)
    rows = TfidfVectorizer(token_pattern=r"(?u)\w+").fit_transform(unique)
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
