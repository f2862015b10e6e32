from dataclasses import replace

import numpy as np
import pytest

from critics.audit.first_error import first_error, predicted_error
from critics.audit.probes import KINDS, Probed, holds, probe_changes, probe_table
from critics.report import gate
from pipeline.statistics import Interval
from tests.critics.conftest import PASSING, make_audit


def probed(**changes: float) -> Probed:
    """Returns 60 changed states of each kind, p moved by the given mean (default: as it must)."""
    rng = np.random.default_rng(0)
    rows = []
    for kind, about in KINDS.items():
        mean = changes.get(kind, 0.0 if about.expects == "no rise" else -0.2)
        for i in range(60):
            before = rng.uniform(0.3, 0.7)
            rows.append((kind, f"c{i // 2}", before, before + mean + rng.normal(0, 0.02)))
    return Probed.of(rows)


def conditions_of(changes: Probed) -> dict[str, gate.Condition]:
    found = gate.judge({"bare": PASSING}, converged=True, probes=probe_changes(changes, num_resamples=200))
    assert {c.name for c in found if c.passed is False} <= {"probes"}
    return {c.name: c for c in found}


def where(changes: Probed, kept: np.ndarray) -> Probed:
    return Probed(*(getattr(changes, name)[kept] for name in ("kind", "cluster", "before", "after")))


def test_a_critic_passes_that_falls_at_a_cosmetic_change_or_rises_by_the_margin() -> None:
    assert conditions_of(probed())["probes"].passed is True
    assert conditions_of(probed(filler=-0.3, duplicate=0.005))["probes"].passed is True
    assert holds("filler", Interval(0.0, -0.1, 0.02)) is True
    assert holds("swapped_task", Interval(-0.1, -0.2, 0.0)) is False
    for rise in (0.02, 0.03):  # its upper bound must stay below the margin
        assert conditions_of(probed(duplicate=rise))["probes"].passed is False


@pytest.mark.parametrize("kind", KINDS)
def test_each_probe_fails_the_gate_by_itself_and_is_named(kind) -> None:
    found = conditions_of(probed(**{kind: 0.05 if KINDS[kind].expects == "no rise" else 0.0}))["probes"]
    assert found.passed is False
    assert found.reason.startswith(kind)
    asked = "may rise by 0.02 at most" if KINDS[kind].expects == "no rise" else "must be below 0"
    assert found.reason.endswith(asked)


def test_what_was_not_probed_is_said_and_nothing_probed_is_no_pass() -> None:
    some = probed()
    without = where(some, some.kind != "split")
    conditions = conditions_of(without)
    unknown = [name for name, c in conditions.items() if c.passed == gate.NOT_MEASURED]
    assert unknown == ["sibling_excess", "probes (split)"]
    assert conditions["probes"].passed is True
    table = probe_table(probe_changes(without, num_resamples=100))
    assert [row["holds"] for row in table if row["kind"] == "split"] == [None]
    nothing = conditions_of(Probed.of([]))["probes"]  # what was asked for and tells nothing is no pass
    assert nothing.passed is False
    assert "more critic_report.probe_rollouts" in nothing.reason
    few = conditions_of(where(some, some.cluster < "c15"))["probes"]
    assert "fewer than 10 clusters" in few.reason
    assert few.passed is False


def test_first_errors_are_counted_against_the_verifiers() -> None:
    audit, _ = make_audit(lambda V, rng: V, num_rollouts=4)
    r = audit.rollouts[0]
    wrong = ("ok", "wrong", "ok", "wrong")
    rollouts = [
        replace(r, values=(0.8, 0.8, 0.1, 0.1), statuses=wrong, reward=0.0),  # exact
        replace(r, values=(0.8, 0.8, 0.8, 0.1), statuses=wrong, reward=0.0),  # one off
        replace(r, values=(0.8, 0.8, 0.8, 0.9), statuses=("ok",) * 4, reward=1.0),  # none, rightly
        replace(r, values=(0.8, 0.1, 0.8, 0.9), statuses=("ok",) * 4, reward=1.0),  # seen where none is
        replace(r, context="guided"),
        replace(r, values=(0.8, 0.8, 0.1, 0.1), statuses=wrong, reward=None),
    ]
    assert predicted_error([0.5, 0.6, 0.55], 1.0) is None
    assert predicted_error([0.5, 0.36, 0.2, 0.5], 1.0) == 1  # by .14, then .16
    assert predicted_error([0.5, 0.6, 0.55], 0.0) == 2  # after the last step the value is the reward
    found = first_error(rollouts)
    assert (found["num_wrong"], found["num_right"]) == (2, 2)
    assert found["exact"].value == 0.5
    assert found["within_one"].value == 1.0
    assert found["none"].value == 0.5
    assert found["f1"].value == pytest.approx(0.5)
