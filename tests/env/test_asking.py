"""Scripted policies that ask, and which of their tokens a policy learns from."""

from typing import Any

import pytest

from env.catalog import offer_of
from env.feedback_tool.calls import NAME, is_call
from env.play.asking import ASKS
from env.play.demonstrations import Demonstration, demonstrate
from env.protocol import replay
from pipeline.errors import ConfigError
from pipeline.models.tiny import train_tokenizer
from pipeline.types import Task
from stages.wiring.sft_data import encode

MATH, PHONE = offer_of(f"math+{NAME}"), offer_of(f"phone+{NAME}")
OWN = {"families": {"chain_add": 1.0}, "level_shares": {1: 1.0}}


def tasks_of(offer: Any, number: int, **settings: Any) -> list[Task]:
    made: list[Task] = offer.demonstrators.practice_tasks(offer.settings(**settings), number, 2, set())
    return made


def made(task: Task, seed: int, policy: str, style: str | None = None) -> Demonstration:
    offer: Any = MATH
    return demonstrate(
        offer.demonstrators,
        offer.env,
        task,
        style=offer.style(style),
        shares={policy: 1.0},
        guided_share=0.3,
        noise=0.2,
        seed=seed,
        follows_feedback=0.5,
        thoughts=False,
    )


def test_one_demonstration_in_eight_is_by_who_asks_unless_shares_say_otherwise() -> None:
    for offer in (MATH, PHONE):
        assert offer.demonstrators is not None
        shares = offer.demonstrators.shares
        assert sum(shares.values()) == pytest.approx(1)
        assert sum(share for name, share in shares.items() if name.endswith(ASKS)) == pytest.approx(0.13)
        offer.check_policies(shares)
    with pytest.raises(ConfigError, match="careless"):
        offer_of("math").check_policies([f"careless{ASKS}"])


def test_who_asks_about_a_wrong_answer_mostly_mends_it_and_keeps_what_no_error_was_found_in() -> None:
    assert MATH.demonstrators is not None
    found: dict[tuple[bool, ...], int] = {}
    for seed, task in enumerate(tasks_of(MATH, 120, **OWN)):
        style = MATH.style()
        actions = MATH.demonstrators.play(task, f"careless{ASKS}", seed, 0.0, (), style, False)
        env = MATH.env()
        results = replay(env, task, seed, actions)
        assert results[-1].terminated
        assert all(map(is_call, actions[:-1]))
        told = [event.target == "solved" for r in results for event in r.events if event.code == NAME]
        stood = (*told, bool(env.verdict().success))
        found[stood] = found.get(stood, 0) + 1
        if stood[0] and len(stood) > 1:
            assert actions[-1].text == actions[0].text.removesuffix(f"\n{NAME}")
    assert set(found) <= {
        (True,), (True, True), (False, True), (False, True, True), (False, False, True), (False, False, False)
    }  # fmt: skip
    assert found[(True,)] > 5  # not all right answers are asked about, but all wrong ones
    assert found[(True, True)] > 5
    assert (False,) not in found
    assert found[(False, True)] > found[(False, False, True)] > 0


def test_a_policy_that_asks_on_the_phone_does_in_the_world_what_it_would_do_without() -> None:
    assert PHONE.demonstrators is not None
    asked = 0
    for seed, task in enumerate(tasks_of(PHONE, 20, level_shares={2: 1.0})):
        style = PHONE.style()
        bare, asking = (
            PHONE.demonstrators.play(task, name, seed, 0.2, (), style, False)
            for name in ("adaptive", f"adaptive{ASKS}")
        )
        assert [action for action in asking if not is_call(action)] == bare
        asked += sum(map(is_call, asking))
        assert not is_call(asking[0])
    assert asked >= 15


@pytest.mark.parametrize("style", ["plain", "full"])
def test_wrong_answers_that_were_asked_about_are_not_learnt_and_the_calls_are(
    tmp_path: Any, style: str
) -> None:
    shown = [
        made(task, seed, f"careless{ASKS}", style) for seed, task in enumerate(tasks_of(MATH, 30, **OWN))
    ]
    texts = ["".join(text for text, _ in demonstration.pieces) for demonstration in shown]
    special = MATH.style(style).special_tokens
    tokenizer = train_tokenizer(texts, 400, tmp_path, "", special)
    masked = 0
    for demonstration, whole in zip(shown, texts, strict=True):
        ids, weights = encode(tokenizer, demonstration, 0.3)
        assert tokenizer.decode(ids) == whole
        own = "".join(text for text, is_own in demonstration.pieces if is_own)
        learnt = tokenizer.decode([i for i, weight in zip(ids, weights, strict=True) if weight == 1])
        assert learnt.count(NAME) == own.count(NAME)
        hidden = tokenizer.decode([i for i, weight in zip(ids, weights, strict=True) if weight == 0])
        assert hidden.count("boxed") == len(demonstration.unlearnt)
        assert NAME not in hidden
        assert learnt.count("boxed") == own.count("boxed") - len(demonstration.unlearnt) > 0
        masked += len(demonstration.unlearnt)
        if style == "plain" and demonstration.unlearnt:  # the border decides whether to ask: it is learnt
            assert f"\n{NAME}" in learnt
            place, start, end = demonstration.unlearnt[0]
            assert demonstration.pieces[place][0][end:].startswith(f"\n{NAME}")
            assert start == 0
    assert masked > 10


def test_a_demonstration_without_a_call_is_learnt_whole() -> None:
    for seed, task in enumerate(tasks_of(MATH, 10, **OWN)):
        assert made(task, seed, "careless").unlearnt == ()
