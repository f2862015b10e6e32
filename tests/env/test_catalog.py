"""The catalogue offers what the stages call."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from env.phone.offer import PHONE
from env.phone.world.tasks import generate_tasks
from pipeline.errors import ConfigError


def test_the_phone_entry_makes_plays_and_values():
    tasks = generate_tasks(
        num_companies=8, num_train=8, num_val=2, num_test=2, level_shares={1: 0.5, 2: 0.5}, seed=0
    )
    style = PHONE.style()
    for name in PHONE.demonstrators.shares:
        actions = PHONE.demonstrators.play(tasks[0], name, 1, 0.2)
        assert [style.parse(action.text) for action in actions] == actions
        assert len(PHONE.solver_value(tasks[0], 1, actions)) == len(actions)
    assert PHONE.env("corrective").verbosity == "corrective"


def test_a_scripted_policy_that_is_not_there_is_refused():
    PHONE.check_policies(PHONE.demonstrators.shares)
    with pytest.raises(ConfigError, match=r"sft\.shares names oracl, but .*allowed: adaptive, oracle"):
        PHONE.check_policies(["oracl", "prober"])


def test_a_style_that_is_not_built_is_refused():
    with pytest.raises(ConfigError, match="allowed: compact, full"):
        PHONE.style("fancy")


def test_the_full_style_offers_the_environment_s_tools():
    tools = PHONE.env().spec.tools
    prompt = PHONE.style("full").render_prompt([{"role": "user", "content": "hello"}], ())
    for tool in tools:
        assert json.dumps(tool) in prompt


def test_importing_the_catalogue_loads_no_heavy_library():
    heavy = "('torch', 'transformers', 'pyarrow')"
    program = f"import sys, env.catalog; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "[]"
