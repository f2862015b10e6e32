"""The actor's report: how it learned, and how its critic drifted, iteration by iteration."""

from collections.abc import Mapping, Sequence
from typing import Any

from stages.wiring.safety_stops import kl_to_start

DRIFT = "critic_drift/"
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

    An entry's `kl` is the KL to the starting policy of what sampled the iteration, if the loss measures one.
    """
    is_measured = kl_to_start(history) is not None
    looks = [entry for entry in history if "rollouts/count" in entry]
    drift = [
        {"iteration": look["iteration"]} | found
        for look in looks
        if (found := {name.removeprefix(DRIFT): x for name, x in look.items() if name.startswith(DRIFT)})
    ]
    for entry in drift if is_measured else ():
        before = [line for line in history if line["iteration"] < entry["iteration"]]
        entry["kl"] = kl_to_start(before) or 0.0
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
    }
