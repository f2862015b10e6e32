"""How alike texts are by the words that they share."""

from collections.abc import Sequence

import numpy as np

BLOCK = 1024
"""Texts that are compared with all others at once: what is held in memory is a block's cosines."""


def most_similar(texts: Sequence[str], others: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the place [N] of each text's most similar one of the others, and their cosine [N] in [0, 1].

    Texts are vectors of term frequency times inverse document frequency over both lists (Salton and Buckley,
    1988, as scikit-learn smooths it); words are runs of letters and digits, single ones included. Of equally
    similar ones the first counts.

    Example:
        >>> places, cosines = most_similar(["add 3 and 4"], ["where is Rome", "add 3 and 5"])
        >>> int(places[0]), round(float(cosines[0]), 2)
        (1, 0.63)
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(token_pattern=r"(?u)\w+").fit([*texts, *others])
    mine, theirs = vectorizer.transform(texts), vectorizer.transform(others).T.tocsc()
    places, cosines = [], []
    for first in range(0, len(texts), BLOCK):
        block = (mine[first : first + BLOCK] @ theirs).toarray()
        places.append(block.argmax(axis=1))
        cosines.append(block.max(axis=1))
    return np.concatenate(places), np.minimum(np.concatenate(cosines), 1.0)
