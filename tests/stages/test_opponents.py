"""The fresh phase of the actor with each opponent and control: what it trains on, and that it goes on."""

from collections import Counter, defaultdict
from typing import Any

import pytest

import stages.wiring.iteration
from pipeline.artifacts.failpoints import FailpointError, failpoint
from pipeline.artifacts.metrics import read_metrics
from tests.pipeline.test_kill_sweep import facts
from tests.stages.conftest import Lab
from tests.stages.test_recompute import assert_same, recomputed


def updates_of(lab: Lab) -> list[dict[str, Any]]:
    return [line for line in read_metrics(lab.run_dir / "actor" / "metrics.jsonl") if "update" in line]


@pytest.fixture
def killed_and_whole(chain, tmp_path, monkeypatch):
    """Trains with these settings, and again with a start that ends before its n-th update; both are equal."""

    def trained(*settings: str, inputs: tuple[str, ...] = ("tasks", "sft"), dies_before: int = 6) -> Lab:
        whole, killed = (chain.copy(tmp_path / name, *inputs) for name in ("whole", "killed"))
        assert whole.start("actor", *settings) == 0
        passed: list[str] = []

        def dies(name: str) -> None:
            failpoint(name)
            passed.append(name)
            if passed.count("actor.update.before") == dies_before:
                raise FailpointError(name)

        with monkeypatch.context() as patch:
            patch.setattr(stages.wiring.iteration, "failpoint", dies)
            assert killed.start("actor", *settings) == 1
        assert killed.start("actor", *settings) == 0
        assert facts(killed.run_dir / "actor") == facts(whole.run_dir / "actor")
        return whole

    return trained


def test_later_passes_train_on_the_same_rollouts_and_ratios_to_what_sampled_them(killed_and_whole):
    lab = killed_and_whole("actor.credit={mode: decoupled_clip}", "actor.passes=2")
    lines = updates_of(lab)
    by_iteration = defaultdict(list)
    for line in lines:
        by_iteration[line["iteration"]].append(line)
    assert len(by_iteration) == 2
    times = Counter(lab.artifact("actor").table("updates")["rollout_id"].to_pylist())
    assert set(times.values()) == {2}
    for of_iteration in by_iteration.values():
        moved = [line["old_kl"] for line in of_iteration]
        assert moved[0] == pytest.approx(0, abs=1e-7)
        assert min(moved[1:]) > 1e-9


def test_the_verifier_s_word_alone_is_credit_for_steps(killed_and_whole):
    lab = killed_and_whole("actor.credit={mode: verifier_steps}", dies_before=3)
    lines = updates_of(lab)
    assert max(line["sets/all_wrong"] for line in lines) > 0  # which decoupled clip leaves out
    assert all(0 < line["verdicts/ok"] + line["verdicts/wrong"] <= 1 for line in lines)
    assert lab.artifact("actor").table("values").num_rows == 0
    assert_same(recomputed(lab), each=2)
