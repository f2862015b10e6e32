import runpy
from pathlib import Path

import pytest

TOUR = Path(__file__).parents[1] / "docs" / "tour.py"


@pytest.mark.slow
def test_the_tour_is_short_and_its_actor_and_critic_learn(tmp_path: Path) -> None:
    assert len(TOUR.read_text(encoding="utf-8").splitlines()) <= 250
    tour = runpy.run_path(str(TOUR))
    found = tour["main"](tour["Sizes"](), tmp_path)
    assert 0.1 < found["before"] < 0.6
    assert found["after"] > found["before"] + 0.1
    assert found["V of successes"] > found["V of failures"] + 0.1
