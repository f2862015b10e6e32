"""A server's answers, and every way in which it may fail: an answer with a kind, unless it refuses all."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from env.feedback import breaker, failures, store
from env.feedback import server as module
from env.feedback.protocol import Answer, Ask
from env.feedback.server import GREETING, MAX_IN_FLIGHT, MAX_REFUSED, MAX_TRIES, Server, ServerOptions
from env.feedback.store import AnswerStore, RateLimit
from pipeline.artifacts.signals import StopFlag, StopRequested
from pipeline.errors import ConfigError
from pipeline.types import FEEDBACK_FAILURES
from tests.feedback_server import Reply, said, stub

DOWN = "http://127.0.0.1:9/v1"  # nobody listens on the port for discarding


def asks(number: int) -> list[Ask]:
    return [Ask(f"r{i}", ({"role": "user", "content": f"attempt {i}"},)) for i in range(number)]


def answers(url: str, folder: Path, number: int = 1, **changes: Any) -> dict[str, Answer]:
    """Returns what a new client of a server is answered, by rollout."""
    options = replace(ServerOptions(url, "feedback", timeout_s=5.0, first_wait_s=0.001), **changes)
    server, found = Server(options, folder), dict[str, Answer]()
    assert server.ask(asks(number)) == []
    while len(found) < number:
        found |= {answer.rollout_id: answer for answer in server.collect(wait=True)}
    assert server.collect(wait=True) == []
    return found


def test_a_request_says_what_the_founding_document_says_and_its_answer_comes_back(tmp_path: Path) -> None:
    with stub(lambda body: said("Ask first.")) as served:
        found = answers(served.url, tmp_path, stop_token_ids=(128001, 128009))
    assert found == {"r0": Answer("r0", "ok", "Ask first.", 7)}
    assert served.bodies == [
        {
            "model": "feedback",
            "messages": [{"role": "user", "content": "attempt 0"}],
            "temperature": 0.0,
            "max_tokens": 2000,
            "seed": 14,
            "n": 1,
            "stop_token_ids": [128001, 128009],
        }
    ]


def test_many_asks_are_answered_each_with_its_own_text(tmp_path: Path) -> None:
    with stub(lambda body: said(body["messages"][0]["content"])) as served:
        found = answers(served.url, tmp_path, 50)
    assert {name: answer.text for name, answer in found.items()} == {
        f"r{i}": f"attempt {i}" for i in range(50)
    }


def test_what_was_answered_once_is_not_asked_again_and_a_torn_file_is_no_answer(tmp_path: Path) -> None:
    with stub(lambda body: said("once")) as served:
        answers(served.url, tmp_path, 3)
        assert answers(served.url, tmp_path, 3)["r2"] == Answer("r2", "ok", "once", 7)
        assert len(served.bodies) == 3
        answers(served.url, tmp_path, 3, temperature=0.5)
        assert len(served.bodies) == 6
        for path in tmp_path.rglob("*.json"):
            path.write_text('{"text": "on')
        assert answers(served.url, tmp_path, 3)["r0"].text == "once"
        assert len(served.bodies) == 9


GARBLED = [
    b"", b"null", b"<html>busy</html>", b'{"choices": []}', b"\xff\xfe", b"[" * 100_000,
    b'{"choices": [{"message": {"content": null}}]}', b'{"choices": [{"message": "text"}]}',
    b'{"choices": [{"message": {"content": "x"}}], "usage": {"completion_tokens": -1}}',
    b'{"choices": [{"message": {"content": "x"}}], "usage": 5}',
]  # fmt: skip


@pytest.mark.parametrize("raw", GARBLED, ids=range(len(GARBLED)))
def test_a_garbled_answer_is_none_after_so_many_tries(raw: bytes, tmp_path: Path) -> None:
    with stub(lambda body: Reply([raw])) as served:
        answer = answers(served.url, tmp_path)["r0"]
        assert answer.status == "garbled"
        assert len(served.bodies) == MAX_TRIES
    assert not list(tmp_path.rglob("*.json"))


def test_a_thought_that_took_all_the_room_is_cut_off_and_not_kept(tmp_path: Path) -> None:
    with stub(lambda body: said(None, finish="length")) as served:
        assert answers(served.url, tmp_path)["r0"].status == "cut_off"
        assert len(served.bodies) == 1
    assert not list(tmp_path.rglob("*.json"))


RAW = "Okay, let me think. The user wants feedback, so first"
GREETINGS = {
    "plain": (said("Hello!"), "ok"),
    "thinks": (said("They want a greeting.\n</think>\n\nHello!"), "cut_off"),
    "parsed": (said("Hello!", reasoning_content="They want a greeting."), "cut_off"),
    "endless": (said(RAW, finish="length"), "cut_off"),
}


@pytest.mark.parametrize("kind", GREETINGS)
def test_a_text_that_was_cut_counts_only_from_a_model_that_does_not_think(kind: str, tmp_path: Path) -> None:
    """A template that opens the thought itself leaves none of its marks in a thought that is cut off."""
    greeting, status = GREETINGS[kind]

    def reply(body: dict[str, Any]) -> Reply:
        return greeting if body["messages"] == list(GREETING.messages) else said(RAW, finish="length")

    with stub(reply) as served:
        found = answers(served.url, tmp_path, 3)
        assert len(served.bodies) == 4  # the model is greeted once
    assert {(answer.status, answer.text) for answer in found.values()} == {(status, RAW)}
    assert len(list(tmp_path.rglob("*.json"))) == (3 if status == "ok" else 0)


def test_what_was_cut_after_the_thought_is_feedback_and_nobody_is_greeted(tmp_path: Path) -> None:
    with stub(lambda body: said("Hm.</think>Ask for the", finish="length")) as served:
        assert answers(served.url, tmp_path)["r0"].status == "ok"
        assert len(served.bodies) == 1


@pytest.mark.parametrize(("code", "tries"), [(500, MAX_TRIES), (404, 1), (307, 1)])
def test_an_http_error_is_tried_again_only_if_that_may_help(code: int, tries: int, tmp_path: Path) -> None:
    with stub(lambda body: Reply([b'{"error": "no"}'], code)) as served:
        text = f'http_error: HTTP {code}: {{"error": "no"}}'
        assert answers(served.url, tmp_path)["r0"] == Answer("r0", "http_error", text)
        assert len(served.bodies) == tries


@pytest.mark.parametrize("code", [429, 503])
def test_a_server_that_is_busy_is_waited_for_as_long_as_it_asks(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = list[float]()
    monkeypatch.setattr(Server, "_pause", lambda self, seconds: waits.append(seconds))
    monkeypatch.setattr(breaker, "FAILURES", 100)
    replies = iter(
        [*(Reply([], code, later=later) for later in ("7", "86400", "", "soon", "9")), said("there")]
    )
    with stub(lambda body: next(replies)) as served:
        assert answers(served.url, tmp_path)["r0"].text == "there"
    assert [seconds for seconds in waits if seconds > 1] == [7.0, failures.MAX_WAIT_SECONDS, 9.0]
    assert len(waits) == 5 > MAX_TRIES


def test_an_outage_loses_no_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(breaker, "POLL_SECONDS", 0.001)
    with stub(lambda body: said("there") if len(served.bodies) > 25 else Reply([b"down"], 500)) as served:
        found = answers(served.url, tmp_path, 40)
    assert {answer.status for answer in found.values()} == {"ok"}
    assert len(served.bodies) == 65


def refusal(code: int) -> Callable[[dict[str, Any]], Reply]:
    """Returns replies that refuse each attempt but the first, and tell the key."""
    reason = b"no\nsuch \x1b[31m thing for sk-canary: " + b"x" * 5000

    def reply(body: dict[str, Any]) -> Reply:
        return said("fine") if body["messages"][0]["content"] == "attempt 0" else Reply([reason], code)

    return reply


@pytest.mark.parametrize("code", [400, 401, 403, 404, 422])
def test_a_server_that_refuses_the_first_asks_ends_the_stage_with_its_reason(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    with stub(refusal(code)) as served:
        server = Server(ServerOptions(served.url, "feedback"), tmp_path)
        server.ask(asks(100)[1:])
        with pytest.raises(ConfigError, match="vdapo check-feedback") as raised:
            all(iter(lambda: server.collect(wait=True), []))
        assert len(served.bodies) <= MAX_REFUSED + 2 * MAX_IN_FLIGHT
    said_of_it = str(raised.value)
    assert f"HTTP {code}: no such \u241b[31m thing for ***: xxx" in said_of_it
    assert "canary" not in said_of_it
    assert said_of_it.count("x") > 400
    assert len(said_of_it) < failures.MAX_REASON_BYTES + 400


@pytest.mark.parametrize("before", ["", " " * 490, "sk-canary", "x" * 490, "x" * 499])
def test_no_part_of_the_key_is_left_of_what_a_server_says(before: str) -> None:
    body = f"{before}sk-canary".encode()
    for end in range(len(body) + 1):
        reason = failures._reason(iter([body[:end], b""]), "sk-canary")
        assert "sk-c" not in reason
        assert len(reason) <= failures.MAX_REASON_BYTES
    assert failures._reason(iter([b"caf\xc3", b"\xa9\nis", b" shut"]), "") == "caf\u00e9 is shut"


def test_a_server_that_has_answered_refuses_single_asks_unless_it_refuses_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_IN_FLIGHT", 1)
    with stub(refusal(400)) as served:
        for _ in range(2):  # the second time the answer is there already, and counts as one
            found = answers(served.url, tmp_path, 20)
            assert found.pop("r0").status == "ok"
            assert {answer.status for answer in found.values()} == {"http_error"}
            assert all("HTTP 400: no such" in answer.text for answer in found.values())
    with stub(refusal(401)) as served, pytest.raises(ConfigError, match="HTTP 401"):
        answers(served.url, tmp_path, 20)


def test_a_server_that_fails_for_a_while_is_waited_for(tmp_path: Path) -> None:
    replies = iter([Reply([], 503), Reply([b"{"]), said("there")])
    with stub(lambda body: next(replies)) as served:
        assert answers(served.url, tmp_path)["r0"].text == "there"


DRIPS = {
    "slow": Reply([b"{}"], seconds=0.6),
    "body": Reply([b" "] * 200, seconds=0.02),
    "headers": Reply(
        [bytes([b]) for b in b"HTTP/1.1 200 OK\r\nX-Wait: " + b"x" * 500], seconds=0.02, bare=True
    ),
}


@pytest.mark.parametrize("reply", DRIPS.values(), ids=DRIPS)
def test_a_server_that_is_slow_or_drips_has_timed_out(reply: Reply, tmp_path: Path) -> None:
    with stub(lambda body: reply) as served:
        assert answers(served.url, tmp_path, timeout_s=0.2)["r0"].status == "timeout"


def test_ten_megabytes_are_not_read_and_no_body_of_an_error_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stub(lambda body: Reply([b'{"x": "' + b"x" * 2**20] * 10)) as served:
        assert answers(served.url, tmp_path)["r0"].status == "too_large"
        assert len(served.bodies) == 1
    monkeypatch.setattr(failures, "REASON_SECONDS", 0.1)
    with stub(lambda body: Reply([b"x"] * 10**6, status=400, seconds=0.05)) as served:
        answer = answers(served.url, tmp_path)["r0"]
    assert answer.status == "http_error"
    assert answer.text.rstrip("x") == "http_error: HTTP 400: "
    with stub(lambda body: Reply([b"x"], status=400, seconds=1.0)) as served:  # its reason comes too late
        answer = answers(served.url, tmp_path, timeout_s=0.2)["r0"]
    assert answer == Answer("r0", "http_error", "http_error: HTTP 400")


def test_a_server_that_stays_down_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_IN_FLIGHT", 1)
    monkeypatch.setattr(breaker, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(breaker, "POLL_SECONDS", 0.001)
    tries: list[Ask] = []
    call = Server.call
    monkeypatch.setattr(Server, "call", lambda self, ask: tries.append(ask) or call(self, ask))
    found = answers(DOWN, tmp_path, 200)
    assert {answer.status for answer in found.values()} == {"unreachable"} <= set(FEEDBACK_FAILURES)
    assert "not sent: no answer" in found["r199"].text
    assert len(tries) < 50


def test_a_signal_ends_the_wait_for_a_server_and_all_that_is_asked_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SIGN_SECONDS", 0.01)
    flag, before = StopFlag(), set(threading.enumerate())
    server = Server(ServerOptions(DOWN, "feedback"), tmp_path)
    server.ask(asks(50))
    with flag.installed():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StopRequested, match="SIGTERM"):
            server.collect(wait=True)
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=5)
        assert not thread.is_alive()


def test_a_defect_reaches_whoever_collects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: AnswerStore, key: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(AnswerStore, "get", broken)
    with pytest.raises(ZeroDivisionError):
        answers(DOWN, tmp_path)


def test_requests_of_all_processes_are_spread_over_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def waited(limit: RateLimit) -> float:
        began = now
        limit.wait()
        return now - began

    monkeypatch.setattr(store.time, "time", lambda: now)
    monkeypatch.setattr(store.time, "sleep", sleep)
    one, other = RateLimit(tmp_path, 30), RateLimit(tmp_path, 30)
    assert [waited(limit) for limit in (one, other, one)] == [0.0, 2.0, 2.0]
    now += 100.0
    assert waited(other) == 0.0
    (tmp_path / "last_request").write_text("torn by a kil")
    assert waited(one) == 0.0
    assert waited(RateLimit(tmp_path, 600)) == pytest.approx(0.1)  # not what the lower rate had left
    now -= 7200.0  # somebody puts the clock back
    assert waited(one) == 2.0
    assert waited(RateLimit(tmp_path / "none", None)) == 0.0
    assert not (tmp_path / "none").exists()


def test_whoever_waits_for_a_slow_server_gives_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signs = list[str]()
    monkeypatch.setattr(module, "sign_of_life", signs.append)
    monkeypatch.setattr(module, "SIGN_SECONDS", 0.02)
    with stub(lambda body: replace(said("Ask first."), seconds=0.3)) as served:
        answers(served.url, tmp_path)
    assert len(signs) > 3


@pytest.mark.parametrize(
    ("key", "status"), [("canary\n", "ok"), ("", "ok"), ("canary\nand more", "unreachable")]
)
def test_no_key_is_written_anywhere(
    key: str, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with stub(lambda body: said("fine")) as served:
        answer = answers(served.url, tmp_path)["r0"]
    assert answer.status == status
    assert "canary" not in answer.text
    assert all(b"canary" not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_what_is_asked_twice_at_once_is_sent_once(tmp_path: Path) -> None:
    with stub(lambda body: said("once", 7)) as served:
        server = Server(ServerOptions(served.url, "feedback"), tmp_path)
        [one] = asks(1)
        server.ask([one, replace(one, rollout_id="same")])
        assert server.collect(wait=True) == [Answer("r0", "ok", "once", 7), Answer("same", "ok", "once", 7)]
        server.ask([one])
        assert server.collect(wait=False) == [Answer("r0", "ok", "once", 7)]
        assert len(served.bodies) == 1
