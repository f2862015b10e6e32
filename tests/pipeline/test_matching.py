"""Which answers are held against each other, and how alike tasks are."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from pipeline import similarity
from pipeline.matching import matched
from pipeline.similarity import MIN_COSINE, asked_by, most_similar
from pipeline.types import Answer, Task
from tests.pairs import answer


def said(name: str, task: str = "t", prompt: int = 0) -> Answer:
    return answer(name, task_id=task, prompt_token_ids=(prompt,))


def found(chosen: list[Answer], rejected: list[Answer], **texts: str) -> list[tuple[str, str, str]]:
    """Returns (chosen id, rejected id, what they share) of each pair."""
    pairs = matched(chosen, rejected, texts)
    return [(p.chosen.answer_id, p.rejected.answer_id, p.match) for p in pairs]


def test_one_task_s_answers_are_paired_evenly_and_the_scarcer_side_is_repeated() -> None:
    one, three = [said("w")], [said(f"l{i}") for i in range(3)]
    assert found(one, three) == [("w", f"l{i}", "prompt") for i in range(3)]
    pairs = found([said(f"w{i}") for i in range(5)], three[:2])
    assert [c for c, _, _ in pairs] == [f"w{i}" for i in range(5)]
    assert sorted(Counter(r for _, r, _ in pairs).values()) == [2, 3]


def test_the_same_prompt_goes_before_the_same_task() -> None:
    chosen, rejected = [said("w0"), said("w1", prompt=1)], [said("l1", prompt=1), said("l2", prompt=2)]
    assert found(chosen, rejected) == [("w1", "l1", "prompt"), ("w0", "l2", "task")]


def test_the_same_task_goes_before_a_similar_one_and_of_those_the_most_similar_is_taken() -> None:
    words = "zero one two three four five six seven eight nine"
    texts = {
        "a": f"{words} ten",
        "b": f"{words} eleven twelve",
        "c": f"{words} eleven",
        "d": "else",
        "e": words,
    }
    chosen = [said("of a", "a"), said("of e", "e")]
    rejected = [said("of b", "b"), said("of c", "c"), said("of d", "d"), said("also e", "e")]
    first, second, *others = matched(chosen, rejected, texts)
    assert (first.chosen, first.rejected, first.match, first.similarity) == (
        *chosen[1:],
        rejected[3],
        "prompt",
        1,
    )
    # The fewer words a has not, the more alike they are; e itself has more of them, and its answer is paired.
    assert (second.chosen, second.rejected, second.match) == (chosen[0], rejected[3], "similar")
    assert MIN_COSINE <= second.similarity < 1
    # Whoever is left looks for a chosen answer; nobody is like d.
    assert {p.rejected.answer_id for p in others} == {"of b", "of c"}
    assert found([said("of a", "a")], rejected[:3], **texts)[0] == ("of a", "of c", "similar")


def test_answers_without_a_near_partner_stay_alone() -> None:
    assert found([said("w", "a")], [said("l", "b")], a="buy milk", b="call a lawyer") == []
    assert matched([], [said("l")], {}) == []
    assert matched([said("w")], [], {}) == []


def test_a_shared_system_message_makes_no_tasks_alike() -> None:
    system, user = {"role": "system", "content": "Help."}, {"role": "user", "content": "buy milk"}
    task = Task("t", "phone", "train", 1, (system, user), "rule", "", "x", "c", 0)
    assert asked_by(task) == "buy milk"
    assert asked_by(replace(task, prompt=(system,))) == "Help."


def test_cosines_are_those_of_counted_words_times_their_rarity() -> None:
    """By hand, for three texts: idf = ln(4 / (1 + texts with it)) + 1."""
    rare, shared = np.log(4 / 2) + 1, np.log(4 / 3) + 1
    x, y = np.array([2 * rare, shared, 0]), np.array([0, shared, rare])  # a a b; b c
    expected = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
    places, cosines = most_similar(["a a b"], ["d", "b c"])
    assert places[0] == 1
    assert cosines[0] == pytest.approx(expected)
    assert most_similar(["b c"], ["c  B"])[1][0] == pytest.approx(1)


def test_texts_without_a_word_are_compared_by_their_signs() -> None:
    places, cosines = most_similar(["+ -"], ["= =", "- +"])
    assert (places.tolist(), cosines[0]) == ([1], pytest.approx(1))


def test_texts_are_compared_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"word{i % 7} word{i % 5} word{i % 3}" for i in range(20)]
    whole = most_similar(texts, texts[::-1])
    monkeypatch.setattr(similarity, "BLOCK", 3)
    for mine, theirs in zip(most_similar(texts, texts[::-1]), whole, strict=True):
        np.testing.assert_array_equal(mine, theirs)
