"""A server's answers, and every way in which it may fail: an answer with a kind, never an exception."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from env.feedback import server as module
from env.feedback import store
from env.feedback.protocol import Answer, Ask
from env.feedback.server import MAX_TRIES, Breaker, Server, ServerOptions
from env.feedback.store import AnswerStore, RateLimit
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
    choice = {"message": {"content": None}, "finish_reason": "length"}
    with stub(lambda body: Reply([json.dumps({"choices": [choice]}).encode()])) as served:
        assert answers(served.url, tmp_path)["r0"].status == "cut_off"
        assert len(served.bodies) == 1
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(("code", "tries"), [(500, MAX_TRIES), (429, MAX_TRIES), (404, 1), (307, 1)])
def test_an_http_error_is_tried_again_only_if_that_may_help(code: int, tries: int, tmp_path: Path) -> None:
    with stub(lambda body: Reply([b'{"error": "no"}'], code)) as served:
        assert answers(served.url, tmp_path)["r0"].status == "http_error"
        assert len(served.bodies) == tries


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


def test_ten_megabytes_are_not_read_and_no_body_of_an_error_is(tmp_path: Path) -> None:
    with stub(lambda body: Reply([b'{"x": "' + b"x" * 2**20] * 10)) as served:
        assert answers(served.url, tmp_path)["r0"].status == "too_large"
        assert len(served.bodies) == 1
    with stub(lambda body: Reply([b"x"] * 10**6, status=400, seconds=1.0)) as served:
        assert answers(served.url, tmp_path)["r0"] == Answer("r0", "http_error", "http_error: HTTP 400")


def test_a_server_that_is_down_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_IN_FLIGHT", 1)
    tries: list[Ask] = []
    call = Server.call
    monkeypatch.setattr(Server, "call", lambda self, ask: tries.append(ask) or call(self, ask))
    found = answers(DOWN, tmp_path, 20)
    assert {answer.status for answer in found.values()} == {"unreachable"} <= set(FEEDBACK_FAILURES)
    assert len(tries) == module.BREAKER_FAILURES * MAX_TRIES


def test_the_breaker_opens_after_failures_running_and_closes_with_an_answer() -> None:
    breaker = Breaker(failures=2, seconds=1000.0)
    for answered, is_open in ((False, False), (True, False), (False, False), (False, True), (True, False)):
        breaker.note("" if answered else "timeout")
        assert breaker.open_for() == ("timeout" if is_open else "")
    over = Breaker(failures=1, seconds=0.0)
    over.note("timeout")
    assert not over.open_for()


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
