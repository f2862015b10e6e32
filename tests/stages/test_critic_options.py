"""The critic's options reach what it is fitted to: kinds of target, their trace decay, balance by class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from critics.rows import class_factors
from stages.critic_data import Data, data_of

OUTCOMES_ALONE = "labels.num_continuations=0"


@pytest.fixture
def data_under(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns what the critic stage would fit under some options, without fitting it."""
    seen: list[Data] = []

    def spy(start: Any) -> Data:
        seen.append(data_of(start))
        return seen[-1]

    def data(lab: Any, *options: str) -> Data:
        assert lab.start("critic", *options, "--dry-run") == 0
        return seen[-1]

    monkeypatch.setattr("stages.critic.data_of", spy)
    return data


@pytest.mark.parametrize(("target", "lam"), [("soft", None), ("td", 0.0), ("td_lambda", 0.5)])
def test_targets_are_bootstrapped_with_the_decay_of_their_rule(
    chain: Any, tmp_path: Any, data_under: Any, target: str, lam: float | None
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts")
    options = (f"labels.target={target}", "labels.td_lam=0.5", OUTCOMES_ALONE)
    assert lab.start("labels", *options) == 0
    data = data_under(lab, *options)
    if lam is None:
        assert data.bootstrap is None
        return
    assert {label.label_source for label in data.labels} == {target}
    assert data.bootstrap.lam == lam
    for row, positions in zip(data.fit, data.bootstrap.positions, strict=True):
        assert set(np.flatnonzero(row.columns["weight"])) <= set(positions.tolist())


def test_a_changed_decay_makes_a_critic_stale_even_where_no_label_changes(
    chain: Any, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts")
    options = ("labels.target=td_lambda", OUTCOMES_ALONE)
    assert lab.start("labels", *options, "labels.td_lam=0.5") == 0
    before = lab.artifact("labels").content_digest
    assert lab.start("critic", *options, "labels.td_lam=0.9") == 3
    assert "labels.td_lam = 0.9, but labels was made with 0.5" in capsys.readouterr().err
    assert lab.start("critic", *options, "labels.td_lam=0.5") == 0
    critic = lab.artifact("critic").content_digest
    assert lab.start("labels", *options, "labels.td_lam=0.9", "--fresh") == 0
    assert lab.artifact("labels").content_digest == before
    assert lab.start("critic", *options, "labels.td_lam=0.9") == 3
    assert "labels.td_lam: 0.5 -> 0.9" in capsys.readouterr().err
    assert lab.start("critic", *options, "labels.td_lam=0.9", "--fresh") == 0
    assert lab.artifact("critic").content_digest != critic


def test_balance_by_class_reaches_the_rows_that_are_fitted(
    chain: Any, tmp_path: Any, data_under: Any
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts", "labels")
    plain, balanced = (data_under(lab, f"critic.class_balance={how}").fit for how in ("task", "label"))
    targets, before = (np.concatenate([row.columns[name] for row in plain]) for name in ("targets", "weight"))
    after = np.concatenate([row.columns["weight"] for row in balanced])
    low, high = class_factors(targets, before)
    assert abs(high / low - 1) > 0.1  # else there is nothing to see
    np.testing.assert_allclose(after, before * np.where(targets >= 0.5, high, low), rtol=1e-6)
