"""Success without and with feedback on the same tasks: a known truth, and what a naive difference says."""

from dataclasses import replace

import numpy as np
import pytest

from pipeline.credit.reliance import reliance
from pipeline.types import Rollout
from tests.rollouts import rollout


def played(rng: np.random.Generator, helps: float, draws: int = 2, num: int = 6000) -> list[Rollout]:
    """Returns groups of bare rollouts, tried again if one failed; feedback adds `helps` to the chance."""
    made = []
    for i in range(num):
        p = rng.choice([0.1, 0.8])
        bare = rng.random(draws) < p
        second = rng.random(draws) < p + helps if not bare.all() else ()
        for attempt, wins in enumerate((bare, second)):
            for win in wins:
                reward = float(win)
                made.append(rollout(group_id=str(i), attempt=attempt, guided=attempt > 0, reward=reward))
    return made


@pytest.mark.parametrize("helps", [0.0, 0.15])
def test_reliance_is_what_feedback_adds_where_a_naive_difference_counts_the_choice_of_tasks(helps) -> None:
    rollouts = played(np.random.default_rng(0), helps)
    found = reliance(rollouts)
    assert found["retried/reliance"] == pytest.approx(helps, abs=0.02)
    again = {r.group_id for r in rollouts if r.guided}
    bare, guided = (
        np.mean([r.reward for r in rollouts if r.group_id in again and r.guided is on])
        for on in (False, True)
    )
    assert guided - bare > helps + 0.05


def test_a_bare_rollout_counts_only_if_another_one_failed() -> None:
    def of(name: str, bare: tuple[float, ...], guided: tuple[float, ...]) -> list[Rollout]:
        return [
            rollout(group_id=name, guided=on, reward=reward)
            for on, rewards in ((False, bare), (True, guided))
            for reward in rewards
        ]

    first = of("a", (1, 0), (1, 0))  # the success alone counts, beside 1/2
    assert reliance(first) == {
        "retried/first_try": 1.0, "retried/with_feedback": 0.5, "retried/reliance": -0.5
    }  # fmt: skip
    both = [*first, *of("b", (0, 0), (1, 1)), *of("c", (1, 1), ()), *of("d", (0, 0), ())]
    assert reliance(both)["retried/first_try"] == pytest.approx(1 / 3)
    assert reliance(both)["retried/with_feedback"] == pytest.approx(2.5 / 3)
    graded = of("e", (0.85, 1), (1,))  # what is not wholly right is tried again
    assert reliance(graded)["retried/first_try"] == 1.0
    branch = replace(first[0], rollout_id="branch", kind="sibling", reward=0.0)
    assert reliance([*first, branch]) == reliance(first)
    assert reliance(of("a", (0,), (1,))) == {}  # nobody else's failure led there
    assert reliance([replace(r, reward=None) if r.guided else r for r in first]) == {}
