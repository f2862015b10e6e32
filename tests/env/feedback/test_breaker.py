"""How long asks wait for a server that fails, and who tries it meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from env.feedback import breaker
from env.feedback.breaker import Breaker
from env.feedback.failures import CallError


class Clock:
    """Time that passes only in pauses."""

    def __init__(self) -> None:
        self.now = 0.0

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def breaker(self) -> Breaker:
        return Breaker(1.0, self.pause, lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(breaker, "POLL_SECONDS", 1.0)
    return Clock()


def down(status: int = 503, **more: Any) -> CallError:
    return CallError("http_error", f"HTTP {status}", status=status, is_down=status != 500, **more)


def test_a_server_that_fails_is_tried_by_one_at_a_time_and_more_and_more_seldom(clock: Clock) -> None:
    gate, times = clock.breaker(), list[float]()
    for _ in range(breaker.FAILURES):
        gate.admit()
        gate.failed(down())
    for _ in range(12):
        gate.admit()
        times.append(clock.now)
        with ThreadPoolExecutor(1) as other:
            assert not other.submit(gate._may_try).result()
        assert not gate.failed(down(500))  # nobody's own fault
    assert times == [1, 2, 4, 8, 16, 32, 62, 92, 122, 152, 182, 212]
    gate.admit()
    gate.failed(down(retry_after=100.0))
    began = clock.now
    gate.admit()
    assert clock.now - began == 100
    gate.answered()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(gate._may_try).result()


def test_a_server_that_is_busy_or_fails_between_answers_is_asked_on(clock: Clock) -> None:
    gate = clock.breaker()
    for _ in range(3 * breaker.FAILURES):
        assert not gate.failed(down(429))
    for _ in range(breaker.FAILURES - 1):
        assert gate.failed(down(500))
    gate.answered()
    assert gate.failed(down(500))
    gate.admit()
    assert clock.now == 0


def test_patience_with_a_server_ends_and_begins_again_with_an_answer(clock: Clock) -> None:
    gate = clock.breaker()

    def fail_for_ever() -> None:
        while True:
            gate.admit()
            assert not gate.failed(down())

    for begins in (0.0, 1000.0):
        clock.now = begins
        with pytest.raises(
            CallError, match=r"not sent: no answer for 600 s \(http_error: HTTP 503"
        ) as raised:
            fail_for_ever()
        assert clock.now == begins + breaker.PATIENCE_SECONDS
        assert not raised.value.may_pass
        clock.pause(breaker.PROBE_SECONDS)
        gate.admit()  # one tries it later
        gate.answered()
    clock.now, busy = 2000.0, down(429)
    while busy.may_pass:
        gate.admit()
        gate.failed(busy := down(429))
        clock.pause(30)
    assert clock.now == 2630.0
