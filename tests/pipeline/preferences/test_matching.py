"""Which answers are held against each other, and how alike tasks are."""

from collections import Counter

import numpy as np
import pytest

from pipeline.preferences import similarity
from pipeline.preferences.matching import MIN_SIMILARITY, Match, Rated, matched
from pipeline.preferences.similarity import most_similar


def rated(name: str, task: str = "t", prompt: int = 0) -> Rated:
    return Rated(name, task, (prompt,))


def found(chosen: list[Rated], rejected: list[Rated], **texts: str) -> list[tuple[str, str, str]]:
    """Returns (chosen id, rejected id, what they share) of each pair."""
    pairs = matched(chosen, rejected, texts)
    return [(chosen[p.chosen].answer_id, rejected[p.rejected].answer_id, p.match) for p in pairs]


def test_one_task_s_answers_are_paired_evenly_and_the_scarcer_side_is_repeated() -> None:
    one, three = [rated("w")], [rated(f"l{i}") for i in range(3)]
    assert found(one, three) == [("w", f"l{i}", "prompt") for i in range(3)]
    many = [rated(f"w{i}") for i in range(5)]
    pairs = found(many, three[:2])
    assert [c for c, _, _ in pairs] == [f"w{i}" for i in range(5)]
    assert sorted(Counter(r for _, r, _ in pairs).values()) == [2, 3]


def test_the_same_prompt_goes_before_the_same_task() -> None:
    chosen, rejected = [rated("w0"), rated("w1", prompt=1)], [rated("l1", prompt=1), rated("l2", prompt=2)]
    assert found(chosen, rejected) == [("w1", "l1", "prompt"), ("w0", "l2", "task")]


def test_the_same_task_goes_before_a_similar_one_and_of_those_the_most_similar_is_taken() -> None:
    words = "one two three four five six seven eight nine"
    texts = {
        "a": f"{words} ten",
        "b": f"{words} eleven",
        "c": f"{words} eleven twelve",
        "d": "else",
        "e": words,
    }
    chosen = [rated("of a", "a"), rated("of e", "e")]
    rejected = [rated("of b", "b"), rated("of c", "c"), rated("of d", "d"), rated("also e", "e")]
    pairs = matched(chosen, rejected, texts)
    assert pairs[0] == Match(1, 3, "prompt", 1.0)
    by_answer = {chosen[p.chosen].answer_id: p for p in pairs[:2]}
    near = by_answer["of a"]
    assert rejected[near.rejected].task_id == most_similar_task(texts, "a", "bcde")
    assert (near.match, MIN_SIMILARITY <= near.similarity < 1) == ("similar", True)
    # Whoever is left looks for a chosen answer; nobody is like d.
    assert {rejected[p.rejected].answer_id for p in pairs} >= {"of b", "also e"}
    assert "of d" not in {rejected[p.rejected].answer_id for p in pairs}


def most_similar_task(texts: dict[str, str], task: str, others: str) -> str:
    places, _ = most_similar([texts[task]], [texts[other] for other in others])
    return others[places[0]]


def test_answers_without_a_near_partner_stay_alone() -> None:
    assert found([rated("w", "a")], [rated("l", "b")], a="buy milk", b="call a lawyer") == []
    assert matched([], [rated("l")], {}) == []
    assert matched([rated("w")], [], {}) == []


def test_cosines_are_those_of_counted_words_times_their_rarity() -> None:
    """By hand, for three texts: idf = ln(4 / (1 + texts with it)) + 1."""
    rare, shared = np.log(4 / 2) + 1, np.log(4 / 3) + 1
    x, y = np.array([2 * rare, shared, 0]), np.array([0, shared, rare])  # a a b; b c
    expected = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
    places, cosines = most_similar(["a a b"], ["d", "b c"])
    assert places[0] == 1
    assert cosines[0] == pytest.approx(expected)
    assert most_similar(["b c"], ["c  B"])[1][0] == pytest.approx(1)


def test_texts_are_compared_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"word{i % 7} word{i % 5} word{i % 3}" for i in range(20)]
    whole = most_similar(texts, texts[::-1])
    monkeypatch.setattr(similarity, "BLOCK", 3)
    for mine, theirs in zip(most_similar(texts, texts[::-1]), whole, strict=True):
        np.testing.assert_array_equal(mine, theirs)
