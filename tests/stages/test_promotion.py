"""Looks at the traffic of a promotion, of arms whose rollouts are made up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import stages.bodies.promotion as body
from env.play.chains import Group
from env.play.team import Job
from env.play.units import Played
from pipeline.artifacts.commit import Shards
from pipeline.artifacts.plan import Plan
from pipeline.artifacts.progress import Progress
from pipeline.artifacts.publish import account
from pipeline.columns import ROLLOUTS, STEPS
from pipeline.errors import ArtifactError
from pipeline.types import Rollout, Task
from stages.promotion import ARMS, Part, traffic
from stages.settings import Config
from tests.rollouts import rollout

Rewards = Callable[[str, int, int], float | None]
"""Arm, look and place there -> the reward, None if nobody could grade it."""


def task(name: str) -> Task:
    return Task(**dict.fromkeys(Task.__slots__, "") | {"task_id": name, "cluster": name, "prompt": ()})


@pytest.fixture
def decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Plays and decides, or goes on from what was committed; returns the verdict."""
    routed = traffic([task(f"t{i}") for i in range(50)], stage_key="k", seed=1)
    parts = [
        Part(look, arm, [group for of, group in requests if of == arm])
        for look, requests in enumerate(routed)
        for arm in ARMS
    ]
    plan = Plan(
        items=[[name for group in part.groups for name in group.rollout_ids] for part in parts],
        tables=(ROLLOUTS, STEPS),
        unit="rollouts",
        work=parts,
    )
    place_of = {
        name: (part.arm, part.look, place)
        for part in parts
        for place, group in enumerate(part.groups)
        for name in group.rollout_ids
    }

    def decide(reward_of: Rewards, repair: bool = False) -> dict[str, Any]:
        def made(group: Group) -> Rollout:
            [name] = group.rollout_ids
            reward = reward_of(*place_of[name])
            status = "ok" if reward is not None else "infra_error"
            return rollout(rollout_id=name, task_id=group.task.task_id, reward=reward, env_status=status)

        def play(jobs: Iterable[Job], on_tick: Any) -> Iterator[Played]:
            for _, unit in jobs:
                yield Played([made(group) for group in unit.groups], {})  # type: ignore[attr-defined]

        hands = SimpleNamespace(play=play, close=lambda: None)
        monkeypatch.setattr(body, "make_hands", lambda *given: hands)
        shards = Shards(
            tmp_path,
            "promotion",
            "stage key",
            plan,
            say=lambda text: None,
            progress=lambda total, unit, done: Progress(Console(quiet=True), unit, total, done),
            stop_if_asked=lambda: None,
        )
        shards.take_over(repair=repair)
        found: dict[str, Any] = {}

        def finish(*, verdict: dict[str, Any], **more: Any) -> None:
            account(shards, "promotion", shards.counts(), tmp_path)
            found.update(verdict)

        changes = {"run": {"round": 1}, "stored": {"objective": {"kind": "likelihood"}}}
        start: Any = SimpleNamespace(
            config=Config.model_validate({**changes, "evaluation": {"of": "stored"}}),
            inputs={name: SimpleNamespace(path=lambda folder: tmp_path) for name in ("sft", "stored")},
            shards=shards,
            log_folder=tmp_path,
            say=lambda text: None,
            output=lambda name, volatile: tmp_path / name,
            finish=finish,
        )
        body.make(start, parts)
        return found

    return decide


def test_a_repair_after_a_look_that_decided_plays_the_later_looks_too(
    decided: Callable[..., dict[str, Any]],
) -> None:
    """What is played again comes out otherwise, as on another processor: look 1 is no longer clear."""

    def before(arm: str, look: int, place: int) -> float | None:
        return None if place % 16 == 0 else float(arm == "candidate" or place % 100 < 71)

    def later(arm: str, look: int, place: int) -> float:
        return float(place % 100 < (77 if arm == "candidate" else 71 if look == 0 else 60))

    with pytest.raises(ArtifactError, match=r"failed 32 .* skipped 500 \(decided_earlier 500\)"):
        decided(before)
    verdict = decided(later, repair=True)
    assert [look["verdict"] for look in verdict["looks"]] == ["continue", "promote"]
