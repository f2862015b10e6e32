"""The catalogue offers what the stages call."""

import pytest

from env.phone.offer import PHONE
from env.phone.world.tasks import practice_tasks
from pipeline.errors import ConfigError


def test_the_phone_entry_makes_plays_and_values():
    [task] = practice_tasks(1, level_shares={2: 1.0}, seed=0, held_out=set())
    style = PHONE.style()
    for name in PHONE.demonstrators.shares:
        actions = PHONE.demonstrators.play(task, name, 1, 0.2)
        assert [style.parse(action.text) for action in actions] == actions
        assert len(PHONE.solver_value(task, 1, actions)) == len(actions)
    assert PHONE.env("corrective").verbosity == "corrective"


def test_a_scripted_policy_or_a_style_that_is_not_there_is_refused():
    PHONE.check_policies(PHONE.demonstrators.shares)
    with pytest.raises(ConfigError, match=r"sft\.shares names oracl, but .*allowed: adaptive, oracle"):
        PHONE.check_policies(["oracl", "prober"])
    with pytest.raises(ConfigError, match="allowed: compact, full"):
        PHONE.style("fancy")
