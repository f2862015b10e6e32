"""The actor's report: how it learned, and how its critic drifted, iteration by iteration."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

DRIFT = "critic_drift/"
NOT_MEASURED = "not measured"
LEARNING = {
    "val": "val/first_try",
    "first_try": "rollouts/first_try",
    "with_feedback": "rollouts/with_feedback",
    "rollouts": "rollouts/count",
    "mixed_sets": "sets/kept_mixed",
    "tokens": "response_length/mean",
    "steps": "steps/mean",
}
"""Name in the report -> metric of an iteration."""


def actor_report(
    history: Sequence[Mapping[str, Any]],  # of metrics.jsonl
    planned: int,  # updates that were asked for
    *,
    refreshes: Sequence[str] = (),  # runs that made another critic, as folders of the actor's run
    refused_refreshes: Sequence[str] = (),  # those that could not
    critic_gate: Mapping[str, Any] | None = None,  # by `refusals.stamp_of`; None without a critic
) -> dict[str, Any]:
    """Returns report.json of the actor: updates, its learning and the drift of its critic by iteration.

    `clean_up_to_kl` is the largest KL to the starting policy at which a paid check did not find the steps
    off, before the first that did; None if none did, NOT_MEASURED if the loss had no KL term.
    """
    looks = [entry for entry in history if "rollouts/count" in entry]
    drift = [
        {"iteration": look["iteration"]} | found
        for look in looks
        if (found := {name.removeprefix(DRIFT): x for name, x in look.items() if name.startswith(DRIFT)})
    ]
    checks = [entry for entry in drift if "steps_off" in entry]
    clean = list(itertools.takewhile(lambda entry: not entry["steps_off"], checks))
    return {
        "updates": max((entry["update"] for entry in history if "update" in entry), default=0),
        "updates_planned": planned,
        "learning": [
            {"iteration": look["iteration"]} | {k: look[v] for k, v in LEARNING.items() if v in look}
            for look in looks
        ],
        "drift": drift,
        "refreshes": list(refreshes),
        "refused_refreshes": list(refused_refreshes),
        "critic_gate": None if critic_gate is None else dict(critic_gate),
        "clean_up_to_kl": max(
            (entry["kl"] for entry in clean if "kl" in entry), default=NOT_MEASURED if clean else None
        ),
    }
