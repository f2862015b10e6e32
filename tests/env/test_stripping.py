"""Guided rollouts on the bare prompt: their tokens, and what only feedback could tell them."""

from dataclasses import replace
from math import nan
from typing import Any

import pytest

from env.play.stripping import Vocabulary, stripped, stripped_successes, told_words
from pipeline.types import Message, Rollout, Step
from tests.env.test_episodes import ask, assert_consistent, continue_, saying, tokenizer
from tests.rollouts import rollout

__all__ = ["tokenizer"]
TOLD = {"previous_attempts": ("You stopped at 1.",), "feedback_in_context": "You stopped at 1."}


def test_a_guided_rollout_is_stripped_to_the_ids_that_the_bare_one_has(tokenizer: Any) -> None:
    words = ("add 2", "add 3")
    bare, guided = saying(tokenizer, *words).play([ask("r"), ask("s", **TOLD)])
    assert len(guided.prompt_token_ids) > len(bare.prompt_token_ids)
    found = stripped(guided, guided.prompt_token_ids, bare.prompt_token_ids)
    assert (found.guided, found.feedback_in_context) == (False, "")
    assert found.token_ids == bare.token_ids
    assert (found.loss_mask, found.steps, found.reward) == (bare.loss_mask, bare.steps, 1.0)
    # Log-probabilities after another prompt are none of these.
    expected = tuple(nan if bit else 0.0 for bit in bare.loss_mask)
    assert found.logprobs == pytest.approx(expected, nan_ok=True)


def test_a_continuation_keeps_what_it_continues_behind_the_bare_prompt(tokenizer: Any) -> None:
    table = saying(tokenizer, "add 1", "add 1", "done")
    bare, parent = table.play([ask("b"), ask("r", **TOLD)])
    (continued,) = saying(tokenizer, "add 4").play([continue_(parent, 1)])
    found = stripped(continued, parent.prompt_token_ids, bare.prompt_token_ids)
    start = parent.steps[1].token_start
    assert found.prompt_token_ids == (*bare.prompt_token_ids, *parent.response_token_ids[:start])
    assert found.response_token_ids == continued.response_token_ids
    (again,) = saying(tokenizer, "add 4").play([continue_(bare, 1)])
    assert found.token_ids == again.token_ids
    assert_consistent(again, tokenizer)


def talk(feedback: str, *said: tuple[str, str]) -> Rollout:
    """Returns a guided rollout of (role, content)."""
    messages: tuple[Message, ...] = tuple({"role": role, "content": text} for role, text in said)
    return rollout(guided=True, feedback_in_context=feedback, messages=messages)


def test_a_value_is_told_unless_prompt_or_an_earlier_reply_held_it() -> None:
    feedback = "call 555-0102 pin=1234 => Help needs: last_4_cc. The answer is Paris."
    shared = {"call", "pin", "last_4_cc", "help", "form"}

    def told(*said: tuple[str, str], prompt: str = "U: R1 at Amber Group") -> set[str]:
        return told_words(prompt, talk(feedback, *said), shared)

    dialled = ("assistant", "call 555-0102 R1 last_4_cc")
    assert told(dialled) == {"555", "0102"}
    assert told(("tool", "Amber Group: Help 555-0102"), dialled) == set()
    assert told(dialled, ("tool", "555-0102 Help needs last_4_cc"), dialled) == {"555", "0102"}
    assert told(dialled, prompt="U: R1, they called me from 555-0102") == set()
    assert told(("assistant", "form last_4_cc")) == set()  # language, not a fact
    assert told(("assistant", "call 555-7777")) == {"555"}  # no feedback told it the rest
    # However it is written, a value is one; what is no number may be one too.
    assert told(("assistant", '{"pin": "1234"} PARIS')) == {"1234", "paris"}
    # A source must come first: what the policy says it does not hold for itself.
    assert told(("assistant", "Paris"), ("assistant", "Paris")) == {"paris"}


def test_words_of_several_clusters_are_shared_and_the_numbers_of_one_are_not() -> None:
    def says(name: str, text: str) -> Rollout:
        return replace(rollout((1,), ((0, 1),)), task_id=name, steps=(Step(0, 0, 0, 1, text),))

    def shared(rollouts: list[Rollout], clusters: dict[str, str]) -> set[str]:
        vocabulary = Vocabulary(clusters)
        for part in (rollouts[::2], rollouts[1::2], rollouts[::2]):  # heard in parts, some of them twice
            vocabulary.hear(part)
        return vocabulary.shared

    clusters = {f"t{i}": f"c{i // 2}" for i in range(200)}
    rollouts = [says(f"t{i}", f"call 555-{1000 + i // 2} pin") for i in range(200)]
    rollouts += [says("t0", "rare"), says("t1", "rare"), says("t2", "twice"), says("t4", "twice")]
    assert shared(rollouts, clusters) == {"call", "555", "pin", "twice"}
    apart = {name: f"c{i}" for i, name in enumerate(clusters)}
    assert "twice" not in shared(rollouts, apart)  # in 2 of 200
    assert shared(rollouts[:1], clusters) == set()


def test_successes_of_an_iteration_get_the_prompt_of_their_group_s_first_attempt() -> None:
    """Language is what was heard in two clusters, in earlier iterations too."""

    def says(name: str, text: str, **changes: Any) -> Rollout:
        made = rollout((1,), ((0, 1),), rollout_id=text, task_id=name, group_id=name, **changes)
        message: Message = {"role": "assistant", "content": text}
        return replace(made, steps=(Step(0, 0, 0, 1, text),), messages=(message,))

    def of(name: str, *said: str, **changes: Any) -> list[Rollout]:
        bare = says(name, "call", prompt_token_ids=(1, 2))
        told = {"guided": True, "attempt": 1, "feedback_in_context": "needs order_number 1234"}
        told |= {"prompt_token_ids": (1, 7, 2), "finish_reason": "success"}
        return [bare, *(says(name, text, **told | changes) for text in said)]

    vocabulary = Vocabulary({"a": "one", "b": "two"})

    def strips(*rollouts: Rollout) -> tuple[list[str], int]:
        kept, told = stripped_successes(rollouts, vocabulary=vocabulary, decode=lambda ids: f"task {ids}")
        assert all((r.prompt_token_ids, r.guided) == ((1, 2), False) for r in kept)
        return [r.rollout_id for r in kept], told

    assert strips(*of("a", "order_number", "call", "1234")) == (["call"], 2)
    needs = {"feedback_in_context": "needs order_number 5678"}
    assert strips(*of("b", "order_number", "5678", **needs)) == (["order_number"], 1)
    assert strips(*of("a", "order_number", finish_reason="ended")) == ([], 0)
    assert strips(*of("a", "order_number", reward=None)) == ([], 0)
    # What failed before its prompt has none: neither it nor a group of such alone says what the bare one is.
    failed_early = says("a", "", prompt_token_ids=(), reward=None)
    assert strips(*of("a", "call"), failed_early) == (["call"], 0)
    assert strips(*of("a", "call")[1:], failed_early) == ([], 0)
    vocabulary = Vocabulary({"a": "one", "b": "two"})
    failed = of("a", "1234", finish_reason="ended")
    assert strips(*failed, *of("b", "1234")) == ([], 1)  # what failed with feedback is not heard
    assert strips(says("a", "1234"), *of("b", "1234")) == (["1234"], 0)
