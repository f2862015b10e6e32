"""Demonstrations of every level: of mixed quality, some after feedback, in text that the parser reads."""

from __future__ import annotations

import json

import pytest

from env.catalog import ENVIRONMENTS
from env.chat.compact import STOP_TOKEN, CompactStyle
from env.demonstrations import demonstrate
from env.phone.levels import LEVELS
from env.phone.tasks import practice_tasks
from env.phone.tools import WAIT, tools_of

STYLE = CompactStyle()
SHARES = {
    "adaptive": 0.30,
    "oracle": 0.10,
    "prober": 0.15,
    "prior_only": 0.20,
    "over_collector": 0.10,
    "noisy_adaptive": 0.15,
}


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_demonstrations_of_a_level_are_mixed_and_readable(level):
    tasks = practice_tasks(80, level_shares={level: 1.0}, seed=2, held_out=set())
    made = [
        demonstrate(
            ENVIRONMENTS["phone"],
            task,
            style=STYLE,
            shares=SHARES,
            guided_share=0.5,
            noise=0.2,
            verbosity="observed",
            seed=number,
        )
        for number, task in enumerate(tasks)
    ]
    success = sum(d.success for d in made) / len(made)
    assert 0.3 < success < 0.95
    assert len({d.policy for d in made}) == len(SHARES)
    assert 0 < sum(d.guided for d in made) < len(made)
    for demonstration in made:
        assert ("<previous_attempts>" in demonstration.pieces[0][0]) == demonstration.guided
        for text, is_trained in demonstration.pieces:
            if is_trained:
                assert STYLE.parse(text.removesuffix(STOP_TOKEN)).status in ("ok", "none")
    words = {word for d in made for text, is_own in d.pieces if is_own for word in text.split()}
    assert ("wait<|im_end|>" in words) == (level >= 3)


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_a_full_demonstration_lists_the_tools_of_its_level(level):
    phone = ENVIRONMENTS["phone"]
    [task] = practice_tasks(1, level_shares={level: 1.0}, seed=2, held_out=set())
    made = demonstrate(
        phone,
        task,
        style=phone.style("full"),
        shares={"oracle": 1.0},
        guided_share=0.0,
        noise=0.0,
        verbosity="observed",
        seed=0,
    )
    listed = made.pieces[0][0].partition("<tools>\n")[2].partition("\n</tools>")[0]
    assert [json.loads(line) for line in listed.split("\n")] == list(tools_of(LEVELS[level]))
    assert (WAIT in listed) == (level >= 3)
