"""What calls came to, recovered from episodes whose kinds are known."""

from typing import Any

import pytest

from env.feedback_tool.calls import NAME
from env.feedback_tool.measures import MEASURES, call_measures, standings, unpriced
from env.feedback_tool.reward import tool_reward
from pipeline.types import Event, Rollout
from tests.rollouts import rollout


def tried(*stood: bool, **changes: Any) -> Rollout:
    """Returns a rollout in which this stood at each call, and in the end."""
    events = tuple(Event(NAME, turn, "solved" if own else "unsolved") for turn, own in enumerate(stood[:-1]))
    facts: dict[str, Any] = {
        "events": (Event("solved", 0), *events),
        "finish_reason": "success" if stood[-1] else "ended",
        "reward": tool_reward(stood[-1], stood[0], len(events)),
    }
    return rollout(**(facts | changes))


def test_known_episodes_give_their_shares() -> None:
    kinds: list[tuple[bool, ...]] = [*[(True,)] * 5, *[(False,)] * 2, *[(False, True)] * 4]
    kinds += [*[(False, False, True)] * 2, (True, False), *[(True, True)] * 2, *[(False, False)] * 4]
    rollouts = [tried(*stood, task_id=f"t{i}") for i, stood in enumerate(kinds)]
    assert [standings(r) for r in rollouts] == kinds
    found = call_measures(rollouts, {f"t{i}": f"c{i}" for i in range(len(kinds))}, seed=0)
    assert found["rollouts"] == 20
    expected = {
        "success": 13 / 20,
        "called": 13 / 20,
        "called_when_wrong": 10 / 12,
        "called_when_right": 3 / 8,
        "useful_calls": 6 / 15,
        "flips_to_wrong": 1 / 15,
        "reward": (5 + 4 * 0.95 + 2 * 0.85 - 0.15 + 2 * 0.9 - 4 * 0.1) / 20,
    }
    assert set(expected) == set(MEASURES)
    for name, value in expected.items():
        assert found[name]["value"] == pytest.approx(value)
        assert found[name]["low"] <= value <= found[name]["high"]


def test_without_calls_shares_of_them_are_undefined_and_nothing_is_graded_that_failed() -> None:
    rollouts = [tried(True), tried(False), tried(False, reward=None, env_status="infra_error")]
    found = call_measures(rollouts, {"t": "c"}, seed=0)
    assert found["rollouts"] == 2
    assert found["called"]["value"] == 0
    assert found["useful_calls"]["value"] is None
    assert call_measures([], {}, seed=0)["success"]["value"] is None


def test_success_alone_is_what_is_left_without_the_price() -> None:
    rewards = [unpriced(r).reward for r in (tried(False, True), tried(True, False), tried(True, reward=None))]
    assert rewards == [1.0, 0.0, None]
