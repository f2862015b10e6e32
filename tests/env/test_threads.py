"""Episodes of environments that let several be played at once: threads change who waits, and no rollout."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from env.code.environment import CodeEnv
from env.math.environment import MathEnv
from env.play.queue import play_in_one_queue
from env.play.units import Episodes
from env.protocol import Action, StepResult
from pipeline.errors import ConfigError
from pipeline.types import Rollout, Task
from tests.env.test_episodes import MANY, CountingEnv, Table, ask, random_talk, saying, tokenizer

__all__ = ["tokenizer"]  # a fixture


class WaitingEnv(CountingEnv):
    """Its steps begin when `at` lets them, and note their threads."""

    def __init__(self, at: threading.Barrier | None, in_threads: bool, *fails: Any) -> None:
        super().__init__(*fails)
        self.spec = replace(self.spec, in_threads=in_threads)
        self._at = at
        self.played_by: list[threading.Thread] = []

    def step(self, action: Action) -> StepResult:
        self.played_by.append(threading.current_thread())
        if self._at is not None:
            self._at.wait(30)
        return super().step(action)


def played(
    table: Table, requests: Any, threads: int, at: Any = None, in_threads: bool = True
) -> list[Rollout]:
    """Returns what a player with so many threads makes of the requests."""

    def make_env(task: Task) -> WaitingEnv:
        table.envs.append(WaitingEnv(at, in_threads, table.fails_in.get(task.task_id, ""), table.failure))
        return table.envs[-1]  # type: ignore[return-value]

    player = replace(table.player(), threads=threads, make_env=make_env)
    [unit] = play_in_one_queue([Episodes(requests)], player, lambda rollout: None)
    return unit.rollouts


def test_steps_of_two_episodes_are_played_at_the_same_time(tokenizer: Any) -> None:
    table = saying(tokenizer, "add 5")
    rollouts = played(table, [ask("a"), ask("b")], 2, threading.Barrier(2))
    assert [rollout.reward for rollout in rollouts] == [1.0, 1.0]  # alone, a barrier breaks: an infra_error


@pytest.mark.parametrize("in_threads", [True, False])
def test_threads_change_no_rollout_and_play_none_that_did_not_ask_for_it(tokenizer, in_threads) -> None:
    alone, beside = Table(tokenizer, random_talk), Table(tokenizer, random_talk)
    assert played(alone, MANY, 1) == played(beside, MANY, 4, in_threads=in_threads)
    by = {thread for env in beside.envs for thread in env.played_by}  # type: ignore[attr-defined]
    assert (by == {threading.main_thread()}) is not in_threads


def test_a_failure_in_a_thread_counts_alone_and_one_of_the_machine_ends_all(tokenizer: Any) -> None:
    table = saying(tokenizer, "add 5")
    table.fails_in["task b"] = "step"
    rollouts = played(table, [ask("a"), ask("b"), ask("c")], 3)
    assert {r.rollout_id: r.env_status for r in rollouts} == {"a": "ok", "b": "infra_error", "c": "ok"}
    table.failure = ConfigError
    with pytest.raises(ConfigError, match="step"):
        played(table, [ask("a"), ask("b")], 2)
    assert all(env.closed for env in table.envs)
    assert not any(thread.name.startswith("ThreadPoolExecutor") for thread in threading.enumerate())


def test_environments_that_judge_in_the_sandbox_say_so() -> None:
    assert CodeEnv().spec.in_threads
    assert MathEnv().spec.in_threads
