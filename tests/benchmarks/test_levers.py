"""Every lever changes an arm that exists, and what it makes can be run."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks._lever_tables import KNOWN
from benchmarks._levers import Levers, ahead, config_with
from pipeline.comparison import Curve
from pipeline.config import config_of
from stages.settings import Config
from stages.wiring.arms import ArmRun, runs_of


@pytest.fixture(scope="module", params=KNOWN)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def known(name: str) -> Levers:
    return KNOWN[name]


@pytest.fixture(scope="module")
def runs(name: str, known: Levers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ArmRun]:
    regime = "sparse" if name.startswith("sparse") else "dense"
    config = config_of(Config, config_with(regime, known, list(known)), [], "levers")
    return {run.arm: run for run in runs_of(config, Path(tmp_path_factory.mktemp("home"))) if run.seed == 3}


def test_all_levers_and_what_they_are_held_against_are_runs(known: Levers, runs: dict[str, ArmRun]) -> None:
    assert runs.keys() == known.keys() | {against for _, against, _ in known.values()}


def test_a_lever_differs_from_what_it_is_held_against(known: Levers, runs: dict[str, ArmRun]) -> None:
    for name, (_, against, _) in known.items():
        own, other = (
            run.config.model_dump(exclude={"run", "comparison"}) for run in (runs[name], runs[against])
        )
        assert own != other
        assert {key for key in own if own[key] != other[key]} <= {
            "actor",
            "critic",
            "critic_report",
            "rollouts",
            "stored",
        }, name


def test_a_lever_is_held_against_its_arm_at_what_the_cheaper_one_spent() -> None:
    def curve(end: float, paid: float) -> Curve:
        return Curve(np.array([0.0, paid]), np.array([[0.2], [end]]) * 400, np.full((2, 1), 400.0))

    curves = {"near_half": {3: curve(0.6, 1000)}, "no_critic": {3: curve(0.6, 2000)}}
    assert ahead(curves, "near_half", "no_critic", 3)[0] == pytest.approx(0.2)
