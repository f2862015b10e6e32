import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from env.play import team
from env.play.queue import play_in_one_queue
from env.play.shards import commit_rollouts
from env.play.units import Played
from pipeline.artifacts.commit import Shard, Shards
from pipeline.artifacts.ledger import Counts
from pipeline.artifacts.publish import account
from pipeline.artifacts.signals import StopRequested
from pipeline.columns import ROLLOUTS
from pipeline.errors import ArtifactError, ExitCode
from pipeline.tables import rollouts_table
from pipeline.types import Event
from tests.rollouts import rollout

SCRIPTED = "engine.kind=scripted"


def committed(
    rewards: tuple[float | None, ...], failed: dict[str, int], num_items: int, before: int = 0
) -> list[Any]:
    """Returns what was committed of a shard with such rollouts; `before` of the stage's items have failed."""
    counts: list[Any] = []
    shards: Any = SimpleNamespace(
        commit=lambda index, tables, **ended: counts.append((index, ended)),
        counts=lambda: Counts(num_items, 0, {"timeout": before}, {}),
        plan=SimpleNamespace(num_items=num_items, unit="rollouts"),
        stage="labels",
    )
    event = Event("infra_error", 0, "timeout", detail="verdict: it took 10 s")
    played = [
        rollout(rollout_id=f"r{i}", reward=x, env_status="timeout", events=() if x is not None else (event,))
        for i, x in enumerate(rewards)
    ]
    ids = (*(r.rollout_id for r in played), *(f"f{i}" for i in range(sum(failed.values()))), "solved")
    commit_rollouts(shards, Shard(3, ids), Played(played, {"solved_earlier": 1}, failed))
    return counts


@pytest.mark.parametrize(("rewards", "done"), [((1.0, None, 0.0), 2), ((None, None), 0)])
def test_rollouts_that_nobody_could_grade_have_failed_by_kind(rewards: tuple[Any, ...], done: int) -> None:
    failed = {"timeout": len(rewards) - done, "feedback_unreachable": 2}
    ended = {"done": done, "failed": failed, "skipped": {"solved_earlier": 1}}
    assert committed(rewards, {"feedback_unreachable": 2}, 200) == [(3, ended)]  # 2 % at most


@pytest.mark.parametrize(
    ("rewards", "failed", "num_items", "before", "said"),
    [
        ((1.0, 0.0), {"feedback_unreachable": 2}, 5, 0, None),  # too many, but as many did not
        ((None, None, None), {}, 200, 1, None),  # all of a small shard: 2 % of the stage by now
        ((None, None, None), {}, 200, 2, "3 rollouts of shard 3 failed (timeout 3), 0 did not"),
        (
            (None, None, 0.0),
            {"feedback_unreachable": 2},
            150,
            0,
            "labels: 4 rollouts of shard 3 failed (timeout 2, feedback_unreachable 2), 1 did not, and later "
            "ones would fail too. Most often: verdict: it took 10 s. Next: ",
        ),
        ((), {"unreachable": 4}, 5, 0, "(unreachable 4), 0 did not, and later ones would fail too. Next: "),
    ],
)
def test_an_outage_ends_a_stage_at_its_first_shard_which_is_not_committed(
    rewards: tuple[Any, ...], failed: dict[str, int], num_items: int, before: int, said: str | None
) -> None:
    if said is None:
        assert len(committed(rewards, failed, num_items, before)) == 1
        return
    with pytest.raises(ArtifactError, match=re.escape(said)) as raised:
        committed(rewards, failed, num_items, before)
    assert raised.value.code == ExitCode.FAILED_ITEMS


@pytest.mark.parametrize(
    ("specs", "said"),
    [({"rollouts": ROLLOUTS}, "biased. Most often: b; a. Next: "), ({}, "biased. Next: ")],
)
def test_a_stage_with_too_many_failures_says_at_its_end_what_they_said(specs: Any, said: str) -> None:
    played = [
        rollout(
            rollout_id=f"r{i}", reward=None, events=(Event("infra_error", 0, detail=word), Event("x", 0, "c"))
        )
        for i, word in enumerate("abb")
    ]
    shards: Any = SimpleNamespace(
        specs=specs, failed=[7], read=lambda *_: rollouts_table(played), plan=SimpleNamespace(unit="rollouts")
    )
    with pytest.raises(ArtifactError, match=re.escape(said)) as raised:
        account(shards, "labels", Counts(10, 7, {"infra_error": 3}, {}), Path("logs"))
    assert raised.value.code == ExitCode.FAILED_ITEMS


@pytest.mark.parametrize("stage", ["rollouts", "labels"])
def test_overlapping_shards_hold_what_separate_ones_hold(chain: Any, tmp_path: Path, stage: str) -> None:
    """The scripted engine's answers depend on nothing but the request, so the tables are equal."""
    found = []
    for name, settings in (("apart", ()), ("overlapping", ("engine.overlap_shards=true",))):
        lab = chain.copy(tmp_path / name, "tasks", "sft")
        assert lab.start("rollouts", SCRIPTED, *(settings if stage == "rollouts" else ())) == 0
        if stage == "labels":
            assert lab.start("labels", SCRIPTED, *settings) == 0
        found.append(lab.played(stage))
    assert found[0] == found[1]


def test_places_that_fall_free_go_to_the_next_shard(
    chain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    queues: list[list[str]] = []

    def noting(units: Any, *rest: Any) -> Any:
        queues.append([])

        def noted() -> Any:
            for unit in units:
                queues[-1].extend(group.group_id for group in unit.groups)
                yield unit

        return play_in_one_queue(noted(), *rest)

    monkeypatch.setattr(team, "play_in_one_queue", noting)
    assert lab.start("rollouts", SCRIPTED, "engine.overlap_shards=true", "engine.max_live=3") == 0
    rollouts = lab.rollouts("rollouts")
    assert queues == [list(dict.fromkeys(rollout.group_id for rollout in rollouts))]  # all, in order


def test_a_stop_keeps_the_shards_that_are_whole_and_the_rest_is_made_later(
    chain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = chain.copy(tmp_path / "whole", "tasks", "sft")
    assert whole.start("rollouts", SCRIPTED) == 0
    lab = chain.copy(tmp_path / "lab", "tasks", "sft")
    done = 0
    item_done = Shards.item_done

    def stopping(self: Shards, number: int = 1) -> None:
        nonlocal done
        done += 1
        item_done(self, number)
        if done == 30:
            raise StopRequested

    monkeypatch.setattr(Shards, "item_done", stopping)
    settings = (SCRIPTED, "engine.overlap_shards=true", "engine.max_live=3")
    assert lab.start("rollouts", *settings) == 75
    files = (lab.run_dir / "rollouts" / "_ledger").glob("*.jsonl")
    committed = [line for file in files for line in file.read_text().splitlines()]
    assert 0 < len(committed) < 4
    assert lab.start("rollouts", *settings) == 0
    assert lab.played("rollouts") == whole.played("rollouts")
