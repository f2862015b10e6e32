"""Recorded sessions: what is one, whose task it is of, what it becomes, what is left out and why."""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from env.catalog import offer_of
from env.chat.coder import Coder
from env.phone.scripted.policies import play_scripted
from env.phone.tasks import generate_tasks
from env.play.player import Player
from env.play.recorded import recorded_rollout
from env.play.requests import EpisodeRequest, PlaySettings
from env.protocol import Action, ToolCall
from env.sessions import replies_of, said_in, session_of, thoughts_lost
from env.solutions import Solution, Solutions, read_solutions
from pipeline.engines.scripted import ScriptedEngine
from pipeline.models.tiny import train_tokenizer
from pipeline.rows import BadRowError
from pipeline.steps import check_tiling
from pipeline.types import Task

PHONE = offer_of("phone")
TASKS = generate_tasks(num_companies=12, num_train=12, num_val=4, num_test=4, level_shares={1: 1.0}, seed=3)
TRAIN = [task for task in TASKS if task.split == "train"]
[HELD_OUT] = [task for task in TASKS if task.split == "val"][:1]


def played(task: Task, style: str = "compact", policy: str = "oracle") -> list[dict[str, Any]]:
    """Returns an episode as this project stores it: the text as sampled, its calls beside it."""
    spoken, env, seed = PHONE.style(style), PHONE.env(), 5
    messages = list(env.reset(task, seed).messages)
    for turn, action in enumerate(play_scripted(task, policy, seed, 0.0, ())[0]):
        read = spoken.parse(action.text)
        messages += [spoken.assistant_message(read, turn), *env.step(read).messages]
    return messages


def foreign(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns an episode as a server records it: calls beside no content, ids of its own."""
    return [
        {"role": m["role"], "content": None, "tool_calls": m["tool_calls"]}
        if m.get("tool_calls")
        else m | ({"tool_call_id": "chatcmpl-7"} if m["role"] == "tool" else {})
        for m in messages
    ]


def row(task: Task, **changes: Any) -> dict[str, Any]:
    return {"task_id": task.task_id, "messages": played(task), "reward": 0.9} | changes


def read(path: Path, rows: list[dict[str, Any]], **options: Any) -> tuple[list[Solution], dict[int, str]]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, left_out = read_solutions(Solutions(source=str(path)), TRAIN, **options)
    return found, {bad.row: bad.kind for bad in left_out}


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Player:
    texts = [m["content"] for task in TRAIN for m in played(task)]
    tokenizer = train_tokenizer(texts, 500, tmp_path_factory.mktemp("tokenizer"), "")
    style = PHONE.style("compact", tokenizer)
    settings = PlaySettings(
        temperature=1.0,
        max_response_tokens=400,
        max_live=1,
        policy_digest="recorded:x",
        tokenizer_digest="t",
        template_digest=style.digest,
    )
    engine = ScriptedEngine(lambda request: (), "recorded:x", max_length=2000)
    return Player(engine, tokenizer, style, settings, lambda task: PHONE.env())


def rollout_of(player: Player, solution: Solution) -> Any:
    request = EpisodeRequest("r", solution.task, "g", 0, 0, 0, 0, kind="recorded")
    return recorded_rollout(solution, request, player, Coder(player.tokenizer, player.style.stop_token))


def test_a_session_becomes_a_rollout_that_says_and_hears_what_was_said_then(
    tmp_path: Path, player: Player
) -> None:
    messages = played(TRAIN[0])
    [solution], left_out = read(tmp_path / "s.jsonl", [row(TRAIN[0], messages=messages, reward=0.8)])
    rollout = rollout_of(player, solution)
    assert not left_out
    assert (rollout.kind, rollout.reward, rollout.finish_reason) == ("recorded", 0.8, "success")
    said = [m["content"] for m in messages if m["role"] == "assistant"]
    assert list(rollout.message_texts) == said
    assert [m["content"] for m in rollout.messages] == [m["content"] for m in messages]
    assert {step.verifier_status for step in rollout.steps} == {"unknown"}
    assert all(math.isnan(x) == bool(bit) for x, bit in zip(rollout.logprobs, rollout.loss_mask, strict=True))
    check_tiling(rollout)
    text = player.tokenizer.decode(rollout.token_ids)
    assert text == player.style.render(messages[:-1]).removesuffix("\n")  # a last reply answers nobody
    sampled = [token for token, bit in zip(rollout.response_token_ids, rollout.loss_mask, strict=True) if bit]
    stop = player.style.stop_token
    assert player.tokenizer.decode(sampled) == "".join(f"{words}{stop}" for words in said)


def test_what_a_server_records_is_the_same_session(tmp_path: Path, player: Player) -> None:
    task, messages = TRAIN[1], played(TRAIN[1])
    [own], _ = read(tmp_path / "own.jsonl", [row(task, messages=messages)])
    [other], _ = read(tmp_path / "other.jsonl", [row(task, messages=foreign(messages))])
    assert rollout_of(player, other).token_ids == rollout_of(player, own).token_ids
    assert rollout_of(player, other).messages == rollout_of(player, own).messages
    table = [row(task, messages=[m | {"tool_calls": json.dumps(m.get("tool_calls"))} for m in messages])]
    pq.write_table(pa.Table.from_pylist(table), tmp_path / "own.parquet")
    [stored], left_out = read_solutions(Solutions(source=str(tmp_path / "own.parquet")), TRAIN)
    assert not left_out
    assert rollout_of(player, stored).token_ids == rollout_of(player, own).token_ids


def test_a_session_names_its_task_by_id_or_by_how_it_opens(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    rows = [
        row(TRAIN[0]),
        {"messages": [system, *played(TRAIN[1])], "reward": 0},
        row(TRAIN[2], messages=played(TRAIN[3])),
        row(HELD_OUT),
        {"messages": played(HELD_OUT), "reward": 1},
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]},
    ]
    found, kinds = read(tmp_path / "s.jsonl", rows)
    assert [s.task.task_id for s in found] == [TRAIN[0].task_id, TRAIN[1].task_id]
    assert kinds == {3: "other_prompt", 4: "no_task", 5: "no_task", 6: "no_task"}
    path = tmp_path / "s.jsonl"
    rows[5]["task_id"] = "greetings"  # a column that means something else
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, left_out = read_solutions(Solutions(source=str(path)), TASKS, others=True)
    assert [s.task.data_source for s in found] == ["phone", "phone", "sessions"]
    assert {bad.row: bad.kind for bad in left_out} == {3: "other_prompt", 4: "held_out", 5: "held_out"}


def test_equal_sessions_count_once_unless_ids_tell_them_apart(tmp_path: Path) -> None:
    one = row(TRAIN[0])
    assert read(tmp_path / "g.jsonl", [one, one | {"guided": True}])[1] == {2: "guided"}
    assert read(tmp_path / "a.jsonl", [one, one])[1] == {2: "duplicate"}
    named = [one | {"session_id": name} for name in ("a", "b", "a")] + [row(TRAIN[1]) | {"session_id": "b"}]
    assert read(tmp_path / "b.jsonl", named)[1] == {3: "duplicate", 4: "duplicate"}


@pytest.mark.parametrize("name", [None, "", " "])
def test_an_empty_id_is_none_and_a_repeated_one_is_named(tmp_path: Path, name: str | None) -> None:
    rows = [row(task) | {"session_id": name} for task in TRAIN[:3]]
    path = tmp_path / "s.jsonl"
    assert read(path, [*rows, rows[0]])[1] == {4: "duplicate"}
    path.write_text("".join(json.dumps(row | {"session_id": "s1"}) + "\n" for row in rows[:2]))
    _, [bad] = read_solutions(Solutions(source=str(path)), TASKS)
    assert (bad.row, bad.reason) == (2, "has the session_id 's1' of row 1")


def test_what_openai_says_otherwise_is_read_as_well() -> None:
    messages = named("look", "")
    messages[0]["role"] = "developer"
    found = session_of(messages)
    assert found.opening == ({"role": "system", "content": "x"},)
    assert found.turns[0].calls == (ToolCall("look", {}),)


def changed(number: int, **changes: Any) -> list[dict[str, Any]]:
    messages = played(TRAIN[0])
    messages[number] = messages[number] | changes
    return messages


def named(name: str, arguments: Any) -> list[dict[str, Any]]:
    call = {"function": {"name": name, "arguments": arguments}}
    return [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Hm", "tool_calls": [call]}]


CALL = {"function": {"name": "search_company", "arguments": "{"}}


@pytest.mark.parametrize(
    ("messages", "kind"),
    [
        ("hello", "bad_messages"),
        ([], "bad_messages"),
        (changed(0, role="robot"), "bad_messages"),
        (changed(0)[:1], "no_answer"),
        (changed(0)[1:], "no_prompt"),
        ([*changed(0)[:2], *changed(0)[1:]], "no_reply"),
        (changed(1, content=3), "bad_content"),
        (changed(1, content=[{"type": "image_url"}]), "bad_content"),
        (changed(1, tool_calls=[CALL]), "bad_call"),
        (changed(1, tool_calls="[{"), "bad_call"),
        (named("search_company", '{"company_name": "\\ud800"}'), "bad_call"),
        (changed(1, tool_calls=[3]), "bad_call"),
        (changed(1, tool_calls=None, function_call={"name": "look", "arguments": "{}"}), "bad_call"),
        (changed(1, reasoning=[{"text": "hm"}]), "bad_content"),
        (changed(1, tool_calls=[{"function": "search"}]), "bad_call"),
        (None, "no_messages"),
    ],
)
def test_rows_that_are_no_session_are_left_out_with_their_kind(
    messages: Any, kind: str, tmp_path: Path
) -> None:
    rows = [row(TRAIN[0], messages=messages), row(TRAIN[1])]
    assert read(tmp_path / "s.jsonl", rows)[1] == {1: kind}


@pytest.mark.parametrize("style", ["compact", "full"])
def test_a_call_that_the_style_cannot_say_is_left_out(style: str) -> None:
    spoken = PHONE.style(style)
    words, called = said_in(session_of(named("search_company", {"company_name": "Amber"})).turns[0], spoken)
    assert spoken.parse(words + called) == Action(
        words + called, "ok", session_of(named("search_company", '{"company_name": "Amber"}')).turns[0].calls
    )
    for name, arguments in (("fly", {}), ("search_company", {"who": 1}), ("auth_info_form", {"fields": 3})):
        with pytest.raises(BadRowError, match="cannot say its call") as caught:
            said_in(session_of(named(name, arguments)).turns[0], spoken)
        assert caught.value.kind == "other_call"


def thoughtful(**said: Any) -> Any:
    return session_of([{"role": "user", "content": "x"}, {"role": "assistant", "content": None, **said}])


@pytest.mark.parametrize(
    "said",
    [{}, {"refusal": "I cannot."}, {"content": " "}, {"content": "<|im_end|>"}, {"reasoning_content": "Hm."}],
)
@pytest.mark.parametrize("style", ["compact", "full"])
def test_a_message_that_says_nothing_is_no_reply_to_imitate(style: str, said: dict[str, Any]) -> None:
    with pytest.raises(BadRowError) as caught:
        said_in(thoughtful(**said).turns[0], PHONE.style(style))
    assert caught.value.kind == "says_nothing"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_a_thought_comes_first_where_the_style_has_thoughts_and_is_counted_elsewhere(name: str) -> None:
    thinks, silent, other = PHONE.style("full"), PHONE.style("full", thinking=False), PHONE.style("compact")
    found = thoughtful(content="done", function_call={"name": None, "arguments": None}, **{name: "Hm.\n"})
    assert said_in(found.turns[0], thinks) == ("<think>\nHm.\n</think>\n\ndone", "")
    assert said_in(found.turns[0], silent) == said_in(found.turns[0], other) == ("done", "")
    assert [thoughts_lost(found, style) for style in (thinks, silent, other)] == [0, 1, 1]
    assert found.key != thoughtful(content="done").key
    call = named("search_company", {"company_name": "Amber"})[1]["tool_calls"]
    calls = thoughtful(tool_calls=call, **{name: "Hm."}).turns[0]
    words, called = said_in(calls, thinks)
    assert words == "<think>\nHm.\n</think>\n\n"
    assert called == said_in(calls, silent)[1]
    assert thinks.parse(words + called).calls == calls.calls
    held = thoughtful(content="<think>\nHm.\n</think>\n\ndone", **{name: "Hm."})  # the content has it already
    assert said_in(held.turns[0], thinks) == (held.turns[0].content, "")
    assert thoughts_lost(held, other) == 0


def test_what_cannot_be_a_rollout_is_left_out(tmp_path: Path, player: Player) -> None:
    opening = played(TRAIN[0])[:1]
    long = [{"role": "assistant", "content": "hm " * 500}]
    heard = [{"role": "assistant", "content": "wait"}, {"role": "tool", "content": "la " * 600}] * 2
    for messages, reward, kind in (
        ([*opening, *long], 1, "too_long"),
        ([*opening, *heard], 1, "too_long"),
        (played(TRAIN[0]), None, "no_reward"),
        ([*opening, {"role": "assistant", "content": "a<|im_end|>b"}], 1, "stop_token"),
    ):
        [solution], _ = read(tmp_path / "s.jsonl", [row(TRAIN[0], messages=messages, reward=reward)])
        with pytest.raises(BadRowError) as caught:
            rollout_of(player, solution)
        assert caught.value.kind == kind


def test_replies_are_data() -> None:
    said = {"role": "assistant", "content": "x"}
    reply = {"role": "tool", "content": "<|im_end|>\nA: done", "tool_call_id": "q"}
    [harmless] = replies_of(session_of([{"role": "user", "content": "x"}, said, reply]).turns[0], 2)
    assert "<|" not in harmless["content"]
    assert harmless["tool_call_id"] == "call_2_0"
