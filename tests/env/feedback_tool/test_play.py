"""`get_feedback` in every family and style, played token by token."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from env.catalog import offer_of
from env.chat.style import ChatStyle
from env.code.scripted import message_of
from env.feedback_tool.calls import ANSWER, NAME
from env.feedback_tool.environment import NO_ERROR
from env.math.worked import Worked
from env.phone.scripted.policies import play_scripted
from env.phone.scripted.spoken import in_style
from env.phone.tasks import practice_tasks
from env.play.player import Player
from env.play.queue import play_unit
from env.play.requests import EpisodeRequest, PlaySettings
from env.play.units import Episodes
from env.protocol import Action, StepResult, ToolCall, replay
from env.short.answers import AnswerKey
from env.short.environment import ShortAnswers
from pipeline.engines import GenerationRequest
from pipeline.engines.scripted import ScriptedEngine
from pipeline.errors import ConfigError
from pipeline.models.tiny import train_tokenizer
from pipeline.steps import check_tiling
from pipeline.types import Event, Rollout, Task, Verdict

RIGHT, WRONG, ASK = "right", "wrong", "ask"
SAID = ({"role": "user", "content": "?"},)


def math_task() -> tuple[Task, str, str]:
    settings = offer_of("math").settings(num_train=1, num_held_out=1, families={"chain_add": 1.0})
    task = offer_of("math").task_set(settings, 0).tasks[0]
    worked = Worked.of(task.details)
    said = worked.said({})
    slip = worked.said({0: str((int(said[0]) + 1) % 100)})
    return task, worked.text(said), worked.text(slip)


def short_task() -> tuple[Task, str, str]:
    key = AnswerKey(("Paris",)).to_text()
    task = Task("t", "short", "train", 1, SAID, "rule", key, "short_text", "c", 0)
    return task, "Answer: Paris", "Answer: Rome"


def code_task() -> tuple[Task, str, str]:
    offer = offer_of("code")
    task = offer.task_set(offer.settings(num_train=4, num_held_out=2), 0).tasks[0]
    assert offer.demonstrators is not None
    [right] = offer.demonstrators.play(task, "careful", 0, 0.0, (), None, False)
    return task, right.text, message_of("raise ValueError")


ANSWERED: dict[str, Callable[[], tuple[Task, str, str]]] = {
    "math": math_task,
    "short": short_task,
    "code": code_task,
}
FAMILIES = [*ANSWERED, "phone"]


def messages_of(family: str, style: ChatStyle, acts: Sequence[str]) -> tuple[Task, list[str]]:
    """Returns a task and what is said: answers and calls about them; on the phone, calls and an episode."""
    if family in ANSWERED:
        task, *texts = ANSWERED[family]()
        answer = dict(zip((RIGHT, WRONG), texts, strict=True))
        said, left = [], list(acts)
        while left:
            text = answer[left.pop(0)]
            if left and left[0] == ASK:
                left.pop(0)
                said.append(style.action_of(ToolCall(NAME, {ANSWER: text})).text)
            else:
                said.append(text)
        return task, said
    task = practice_tasks(1, level_shares={1: 1.0}, seed=2, held_out=set())[0]
    calls = [style.action_of(ToolCall(NAME, {})).text for act in acts if act == ASK]
    if acts[-1] == WRONG:
        return task, [*calls, style.action_of(None).text]
    first, *rest = in_style(getattr(style, "inner", style), task, 7, play_scripted(task, "oracle", 7, 0.0)[0])
    return task, [first.text, *calls, *(action.text for action in rest)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    style = offer_of("math").style("full")
    folder = tmp_path_factory.mktemp("tokenizer")
    return train_tokenizer(["U: A: T: get_feedback\n"], 300, folder, "", style.special_tokens)


def play(tokenizer: Any, family: str, style_name: str | None, acts: Sequence[str]) -> Rollout:
    offer = offer_of(f"{family}+{NAME}")
    style = offer.style(style_name)
    task, said = messages_of(family, style, acts)

    def reply(request: GenerationRequest) -> list[int]:
        text = said[int(request.request_id.rpartition(":")[2])] + style.stop_token
        return list(tokenizer.encode(text, add_special_tokens=False))

    engine = ScriptedEngine(reply, "p", logprobs=lambda _, ids: [-0.5] * len(ids))
    settings = PlaySettings(1.0, 9000, 4, "p", "tok", style.digest, offer.splitter)
    player = Player(engine, tokenizer, style, settings, lambda task: offer.env())
    request = EpisodeRequest("r", task, "g", 0, 0, 0, seed=7)
    [rollout] = play_unit(Episodes([request]), player).rollouts
    return rollout


CASES = [
    ([RIGHT], 1.0),
    ([WRONG, ASK, RIGHT], 0.95),
    ([WRONG, ASK, WRONG, ASK, RIGHT], 0.85),
    ([WRONG], 0.0),
    ([WRONG, ASK, WRONG], -0.1),
    ([WRONG, ASK, WRONG, ASK, WRONG], -0.2),
]


@pytest.mark.parametrize(
    ("family", "style"),
    [(family, None) for family in FAMILIES]
    + [pytest.param(name, "full", marks=pytest.mark.slow if name == "code" else ()) for name in FAMILIES],
)
def test_the_order_of_rewards_holds_in_play_and_what_the_tool_says_is_not_trained_on(
    tokenizer: Any, family: str, style: str | None
) -> None:
    for acts, reward in CASES:
        rollout = play(tokenizer, family, style, acts)
        calls = acts.count(ASK)
        assert rollout.env_status == "ok"
        assert rollout.reward == pytest.approx(reward), acts
        assert rollout.finish_reason == ("success" if acts[-1] == RIGHT else "ended")
        asked = [event for event in rollout.events if event.code == NAME]
        assert [event.target for event in asked] == ["unsolved"] * calls
        check_tiling(rollout)
        text = tokenizer.decode(
            [i for i, m in zip(rollout.response_token_ids, rollout.loss_mask, strict=True) if m]
        )
        said = [m["content"] for m in rollout.messages if m["role"] == "assistant"]
        assert text.replace(offer_of(family).style(style).stop_token, "") == "".join(said)
        assert text.count(NAME) == calls  # the call is trained on
        told = [m for m in rollout.messages if m["role"] == "tool"]
        own = [m for m in told if int(m["tool_call_id"].split("_")[1]) in {event.turn for event in asked}]
        assert len(own) == calls
        assert all(m["content"] != NO_ERROR and m["content"] not in text for m in own)
        if family in ANSWERED:
            assert len(said) == calls + 1
            assert len(told) == calls  # and so at most 3 of the user's, the task included


@pytest.mark.parametrize("family", ["math", "short"])
def test_a_needless_call_costs_its_price_and_flips_cost_more(tokenizer: Any, family: str) -> None:
    kept = play(tokenizer, family, None, [RIGHT, ASK, RIGHT])
    flipped = play(tokenizer, family, None, [RIGHT, ASK, WRONG])
    assert kept.reward == pytest.approx(0.9)
    assert flipped.reward == pytest.approx(-0.15)
    assert [e.target for e in kept.events if e.code == NAME] == ["solved"]
    assert [m["content"] for m in kept.messages if m["role"] == "tool"] == [NO_ERROR]


def test_a_third_call_is_not_run_and_leaves_no_answer(tokenizer: Any) -> None:
    rollout = play(tokenizer, "math", None, [WRONG, ASK, WRONG, ASK, RIGHT, ASK])
    assert rollout.reward == pytest.approx(-0.2)
    assert rollout.finish_reason == "ended"
    assert rollout.messages[-1]["role"] == "assistant"


def test_on_the_phone_calls_change_nothing_of_the_world_and_a_third_is_refused(tokenizer: Any) -> None:
    bare, asked = (play(tokenizer, "phone", None, acts) for acts in ([RIGHT], [ASK, ASK, RIGHT]))
    world = [(e.code, e.target, e.fields) for e in asked.events if e.code != NAME]
    assert world == [(e.code, e.target, e.fields) for e in bare.events]
    assert [s.verifier_status for s in bare.steps] == [
        s.verifier_status for s in asked.steps if NAME not in s.text
    ]
    assert asked.reward == pytest.approx(0.85)
    third = play(tokenizer, "phone", None, [ASK, ASK, ASK, WRONG])
    assert [e.code for e in third.events][-2:] == ["bad_args", "none"]
    assert third.reward == pytest.approx(-0.2)


def test_verdicts_on_an_answer_lie_on_the_call_that_holds_it(tokenizer: Any) -> None:
    rollout = play(tokenizer, "math", None, [WRONG, ASK, RIGHT])
    first, *others, box, call = [s.verifier_status for s in rollout.steps if s.message_index == 0]
    assert (first, set(others), box, call) == ("wrong", {"ok"}, "unknown", "unknown")
    assert {s.verifier_status for s in rollout.steps if s.message_index == 1} == {"ok", "unknown"}
    escaped = play(tokenizer, "math", "full", [WRONG, ASK, RIGHT])
    [wrong] = [s for s in escaped.steps if s.verifier_status == "wrong"]
    assert ANSWER in wrong.text


def test_a_failure_that_is_not_the_policy_s_has_no_reward_and_no_price(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failure = "verifier_timeout"
    monkeypatch.setattr(ShortAnswers, "step", lambda *_: StepResult((), infra_error=failure))
    monkeypatch.setattr(ShortAnswers, "verdict", lambda _: Verdict(None, None, infra_error=failure))
    env = offer_of(f"short+{NAME}").env()
    call = Action("x", "ok", (ToolCall(NAME, {ANSWER: "x"}),))
    assert replay(env, short_task()[0], 0, [call])[0].infra_error == failure
    assert env.verdict() == Verdict(None, None, infra_error=failure)


def test_an_episode_cut_off_after_a_call_has_no_answer() -> None:
    task, right, _ = short_task()
    env = offer_of(f"short+{NAME}").env()
    [result] = replay(env, task, 0, [Action(right, "ok", (ToolCall(NAME, {ANSWER: right}),))])
    assert result.events[-1] == Event(NAME, 0, "solved")
    assert env.verdict().reward == pytest.approx(-0.15)
    assert not env.verdict().success


def test_reasoning_is_judged_with_the_answer() -> None:
    task, right, _ = math_task()
    lines, _, answer = right.rpartition("\n")
    env = offer_of(f"math+{NAME}").env()
    style = offer_of(f"math+{NAME}").style("full")
    action = style.parse(style.action_of(ToolCall(NAME, {ANSWER: answer, "reasoning": lines})).text)
    [result] = replay(env, task, 0, [action])
    assert result.events[-1].target == "solved"
    assert len({step.char_start for step in env.verdict().steps}) == 1


def test_an_environment_of_one_s_own_has_the_tool_by_its_name() -> None:
    assert offer_of(f"env.short.offer:SHORT+{NAME}").name == f"short+{NAME}"


def test_an_environment_that_is_none_is_named_with_the_tool() -> None:
    with pytest.raises(ConfigError, match=rf"each also with \+{NAME}"):
        offer_of("math+feedback")
