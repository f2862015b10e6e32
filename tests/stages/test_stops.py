"""What ends the actor's training before its time, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.errors import ArtifactError
from stages.settings import Stops
from stages.stops import reasons, refuse_unsafe


def history(
    kls: list[float] = [0.0] * 4,
    lengths: list[float] = [40.0] * 4,
    rates: list[float] = [0.5] * 4,
    terms: list[float] = [0.0] * 4,
) -> list[dict[str, Any]]:
    """Two updates and one look in each iteration."""
    lines: list[dict[str, Any]] = []
    for i, (kl, length, rate, term) in enumerate(zip(kls, lengths, rates, terms, strict=True)):
        lines += [
            {"iteration": i, "update": 2 * i + u, "ref_kl": kl, "step/mixed/mean": term + u} for u in (0, 1)
        ]
        lines.append({"iteration": i, "response_length/mean": length, "val/first_try": rate})
    return lines


def test_a_healthy_history_goes_on() -> None:
    assert reasons([], Stops()) == []
    assert reasons(history(), Stops()) == []
    refuse_unsafe(history(kls=[0.0, 0.2, 0.2, 0.09]), Stops())  # it came back


@pytest.mark.parametrize(
    ("changes", "words", "off"),
    [
        ({"kls": [0.0, 0.0, 0.05, 0.11]}, "KL to the starting policy is 0.11", {"max_kl": None}),
        ({"lengths": [40, 40, 50, 61]}, "+52% since the first iteration", {"max_length_change": None}),
        ({"lengths": [40, 40, 30, 19]}, "-52% since the first iteration", {"max_length_change": None}),
        (
            {"rates": [0.5, 0.4, 0.3, 0.2], "terms": [0.0, 0.1, 0.2, 0.3]},
            "fell 3 times running, 0.500 to 0.200",
            {"falling_evaluations": 0},
        ),
    ],
)
def test_each_sign_stops_with_code_4_unless_its_limit_is_lifted(
    changes: dict[str, Any], words: str, off: dict[str, Any]
) -> None:
    with pytest.raises(ArtifactError) as stopped:
        refuse_unsafe(history(**changes), Stops())
    assert stopped.value.code == 4
    assert words in str(stopped.value)
    assert "after iteration 3" in str(stopped.value)
    refuse_unsafe(history(**changes), Stops(**off))


def test_success_that_falls_alone_or_a_term_that_rises_alone_goes_on() -> None:
    falling, rising = [0.5, 0.4, 0.3, 0.2], [0.0, 0.1, 0.2, 0.3]
    assert reasons(history(rates=falling), Stops()) == []
    assert reasons(history(terms=rising), Stops()) == []
    assert reasons(history(rates=[0.5, 0.4, 0.45, 0.2], terms=rising), Stops()) == []
    assert reasons(history(rates=falling, terms=rising)[:-3], Stops()) == []  # two falls only


def test_limits_may_change_between_starts_of_one_actor() -> None:
    """They say when it stops, not what it makes; so a stopped actor can be told to go on."""
    from pipeline.config import split_settings
    from stages.settings import Actor

    semantic, runtime = split_settings(Actor())
    assert semantic["stops"] == {}
    assert set(runtime["stops"]) == {"max_kl", "max_length_change", "falling_evaluations"}
