"""What calls for feedback came to: who calls, when, and what a call changes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from env.feedback_tool.calls import NAME
from pipeline.statistics import ClusterBootstrap, interval_dict
from pipeline.types import Rollout

MEASURES = {
    "success": "right in the end",
    "reward": "reward, less the price of calls",
    "called": "tries with a call",
    "called_when_wrong": "tries with a call, of those wrong at first",
    "called_when_right": "tries with a call, of those right at first",
    "useful_calls": "calls after which what was wrong is right",
    "flips_to_wrong": "calls after which what was right is wrong",
}


def standings(rollout: Rollout) -> tuple[bool, ...]:
    """Returns whether what stood was right: at each call, and in the end.

    Where success ends an episode, nothing is right at a call.
    """
    at_calls = (event.target == "solved" for event in rollout.events if event.code == NAME)
    return (*at_calls, rollout.finish_reason == "success")


def unpriced(rollout: Rollout) -> Rollout:
    """Returns a rollout whose reward is 1 for a success, else 0, whatever its calls took; null stays null."""
    reward = None if rollout.reward is None else float(rollout.finish_reason == "success")
    return replace(rollout, reward=reward)


def call_measures(rollouts: Sequence[Rollout], clusters: Mapping[str, str], *, seed: int) -> dict[str, Any]:
    """Returns each of `MEASURES` with its 95 % interval over clusters, and how many rollouts were graded.

    `clusters` are those of tasks. A rollout may have several calls; a share of calls is over all of them.
    """
    graded = [(r, r.reward) for r in rollouts if r.reward is not None]
    stood = [standings(r) for r, _ in graded]
    pairs = [list(pairwise(own)) for own in stood]
    one = np.ones(len(graded))
    calls = np.array([len(own) for own in pairs], np.float64)
    called, right = np.minimum(calls, 1), np.array([own[0] for own in stood], np.float64)
    useful = np.array([own.count((False, True)) for own in pairs], np.float64)
    flips = np.array([own.count((True, False)) for own in pairs], np.float64)
    ratios = {
        "success": (np.array([own[-1] for own in stood], np.float64), one),
        "reward": (np.array([reward for _, reward in graded]), one),
        "called": (called, one),
        "called_when_wrong": (called * (1 - right), 1 - right),
        "called_when_right": (called * right, right),
        "useful_calls": (useful, calls),
        "flips_to_wrong": (flips, calls),
    }
    boot = ClusterBootstrap([clusters[r.task_id] for r, _ in graded], seed=seed)
    return {"rollouts": len(graded)} | {name: interval_dict(boot.ratio(*of)) for name, of in ratios.items()}
