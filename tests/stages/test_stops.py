from typing import Any

import numpy as np
import pytest

from pipeline.credit import GRPO, VDapo
from pipeline.credit.updates import BaselineSets
from pipeline.errors import ArtifactError
from stages.wiring.safety_stops import reasons, refuse_unsafe
from tests.rollouts import rollout


def history(kls=[0.0] * 4, lengths=[40.0] * 4, rates=[0.5] * 4, terms=[0.0] * 4):
    """Two updates and one look in each iteration."""
    lines: list[dict[str, Any]] = []
    for i, (kl, length, rate, term) in enumerate(zip(kls, lengths, rates, terms, strict=True)):
        lines += [
            {"iteration": i, "update": 2 * i + u, "ref_kl": kl, "step/mixed/mean": -term} for u in (0, 1)
        ]
        look = {"response_length/mean": length, "critic/rise": term, "val/first_try": rate}
        lines.append({"iteration": i, **look})
    return lines


def test_a_healthy_history_goes_on():
    assert reasons([]) == []
    assert reasons(history()) == []
    refuse_unsafe(history(kls=[0.0, 0.2, 0.2, 0.09]))  # it came back
    spike = {"iteration": 4, "update": 8, "ref_kl": 111.0}  # one unlikely token
    refuse_unsafe([*history(), spike])
    with pytest.raises(ArtifactError, match="is 2 nats"):
        refuse_unsafe([*history(), spike, {**spike, "ref_kl": 2.0}])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kls": [0.0, 0.0, 0.05, 0.11]}, "KL to the policy that it began with is 0.11"),
        ({"lengths": [40, 40, 50, 61]}, "+52% since the first iteration"),
        ({"lengths": [40, 40, 30, 19]}, "-52% since the first iteration"),
        (
            {"rates": [0.5, 0.4, 0.3, 0.2], "terms": [0.0, 0.1, 0.2, 0.3]},
            "fell 3 times running, 0.500 to 0.200",
        ),
    ],
)
def test_each_sign_stops_with_code_4(changes, words):
    with pytest.raises(ArtifactError) as stopped:
        refuse_unsafe(history(**changes))
    assert stopped.value.code == 4
    assert words in str(stopped.value)
    assert "after iteration 3" in str(stopped.value)


def test_success_that_falls_alone_or_a_value_that_rises_alone_goes_on():
    falling, rising = [0.5, 0.4, 0.3, 0.2], [0.0, 0.1, 0.2, 0.3]
    assert reasons(history(rates=falling)) == []
    assert reasons(history(terms=rising)) == []
    assert reasons(history(rates=[0.5, 0.4, 0.45, 0.2], terms=rising)) == []
    assert reasons(history(rates=falling, terms=rising)[:-3]) == []  # two falls only


def iteration_of(i, success, pleased):
    """Returns an iteration's look, and its update's metrics, of an actor that its critic follows.

    Of 10 rollouts of one task a share succeeds; the value of all rises from .5 by `pleased`.
    """
    T = 4
    steps = [(t, t + 1) for t in range(T)]
    rollouts = [
        rollout((1,) * T, steps, rollout_id=f"r{k}", draw=k, seed=k, reward=float(k < 10 * success))
        for k in range(10)
    ]
    credit = VDapo()
    values = {r.rollout_id: np.linspace(0.5, 0.5 + pleased, T) for r in rollouts}
    batch = BaselineSets.of(rollouts, values, credit)
    _, update, _ = credit.credit([s for _, s in batch.candidates], credit.initial_state())
    return {"iteration": i, **batch.metrics(), "val/first_try": success}, {"iteration": i, **update}


def test_a_critic_that_is_ever_more_pleased_while_success_falls_is_seen_to_rise():
    """The mean step advantage is not the sign: it ends in the outcome, and falls with it."""
    made = [iteration_of(i, 0.8 - 0.2 * i, 0.1 * i) for i in range(4)]
    assert [look["critic/rise"] for look, _ in made] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    advantages = [update["step/mixed/mean"] for _, update in made]
    assert advantages == sorted(advantages, reverse=True)
    found = reasons([line for pair in made for line in pair])
    assert len(found) == 1
    assert "rose ever more along the rollouts, +0.000 to +0.200" in found[0]
    assert "critic/rise" not in BaselineSets.of([], None, GRPO).metrics()  # without a critic
    content = [iteration_of(i, 0.8 - 0.2 * i, 0.1) for i in range(4)]
    assert reasons([line for pair in content for line in pair]) == []
