"""From rollouts to the sets that are trained on: what is left out is counted."""

from __future__ import annotations

import pytest

from pipeline.credit import Credit, DecoupledClip, Grpo, VDapo
from pipeline.ids import rollout_id
from pipeline.types import Rollout, Step
from stages.wiring.iteration import Batch

REWARDS = {"mixed": (1, 0), "right": (1, 1), "also right": (1, 1), "wrong": (0, 0), "one": (1,)}


def rollouts_of() -> list[Rollout]:
    """One set of each kind, two that are all right."""
    return [
        Rollout(
            rollout_id(name, 0, draw), name, name, 0, 0, draw, (), 0, False, "", (), (1,), (2,), (1,), (0.0,),
            1.0, 1.0, -1, 64, draw, "p", "tok", "tpl", "ended", float(reward), 0.0, "ok", (), "", "",
            (Step(0, 0, 1, ""),),
        )
        for name, rewards in REWARDS.items()
        for draw, reward in enumerate(rewards)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("credit", "kept", "left_out"),
    [
        (Grpo(), 4, {"single": 1}),
        (DecoupledClip(), 1, {"single": 1, "all_right": 2, "all_wrong": 1}),
        (VDapo(alpha=0.0, baseline="group_mean"), 1, {"single": 1, "all_right": 2, "all_wrong": 1}),
    ],
)
def test_the_sets_that_a_mode_leaves_out_are_counted_by_kind(
    credit: Credit, kept: int, left_out: dict[str, int]
) -> None:
    metrics = Batch.of(rollouts_of(), None, credit).metrics()
    counted = {n.removeprefix("sets/left_out/"): v for n, v in metrics.items() if "left_out" in n}
    nothing = dict.fromkeys(("mixed", "all_right", "all_wrong", "single"), 0)
    assert counted == nothing | left_out
    assert metrics["sets/kept"] == kept == len(REWARDS) - sum(left_out.values())
