"""The audit by fresh continuations against exactly enumerated V^pi, through the player that audits use."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from env.catalog import ENVIRONMENTS
from env.episodes import EpisodeRequest, PlaySettings, play
from env.phone.environment import PhoneEnv
from pipeline.engines.scripted import ScriptedEngine
from pipeline.models import train_tokenizer
from pipeline.statistics import clopper_pearson
from pipeline.types import Rollout, Task
from tests.exact_values import POLICIES, STYLE, ExactValues, draw

PHONE = ENVIRONMENTS["phone"]
NUM_STATES, K = 300, 32


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    tasks = PHONE.generate_tasks(num_companies=12, num_train=12, num_val=4, num_test=4)
    texts = [STYLE.render_prompt(task.prompt, ()) for task in tasks]
    return train_tokenizer(texts, 400, tmp_path_factory.mktemp("tokenizer"), "")


def play_policy(tokenizer: Any, name: str, requests: list[EpisodeRequest]) -> list[Rollout]:
    """Returns the requests' rollouts by a policy that is told, by id, which episode it is in."""
    by_id = {request.rollout_id: request for request in requests}
    worlds: dict[str, PhoneEnv] = {}

    def reply(request: Any) -> list[int]:
        rollout_id, _, turn = request.request_id.rpartition(":")
        asked = by_id[rollout_id]
        if rollout_id not in worlds:
            env = worlds[rollout_id] = PhoneEnv()
            env.reset(asked.task, 0)
            for step in asked.parent.steps[: int(turn)] if asked.parent else ():
                env.step(STYLE.parse(step.text))
        action = draw(POLICIES[name], worlds[rollout_id], Random(request.seed))
        worlds[rollout_id].step(action)
        return list(tokenizer.encode(action.text + STYLE.stop_token, add_special_tokens=False))

    return play(
        requests,
        make_env=lambda task: PHONE.make_env(),
        style=STYLE,
        tokenizer=tokenizer,
        engine=ScriptedEngine(reply, name, max_length=8192),
        settings=PlaySettings(1.0, 4096, 64, name, "tok", STYLE.digest),
    )


def episodes(tasks: list[Task], per_task: int, seed: int) -> list[EpisodeRequest]:
    return [
        EpisodeRequest(f"r{i}-{j}", task, f"g{i}", 0, 0, j, seed=seed + 1000 * i + j)
        for i, task in enumerate(tasks)
        for j in range(per_task)
    ]


def test_exact_values_are_those_of_a_long_simulation() -> None:
    task = PHONE.generate_tasks(num_companies=12, num_train=12, num_val=4, num_test=4)[0]
    rng = Random(0)
    for policy in POLICIES.values():
        exact = ExactValues(task, policy)([])
        won = 0
        for _ in range(1500):
            env = PhoneEnv()
            env.reset(task, 0)
            while not env.is_over:
                env.step(draw(policy, env, rng))
            won += env.verdict().success is True
        bounds = clopper_pearson(won, 1500, level=0.999)
        assert bounds.low <= exact <= bounds.high
        assert 0 < exact < 1


@pytest.mark.slow
def test_the_audit_agrees_with_enumerated_values_and_the_solver_bounds_them(tokenizer: Any) -> None:
    """300 states with V^pi strictly inside (0, 1): at least 93 % lie in their Clopper-Pearson intervals."""
    tasks = PHONE.generate_tasks(num_companies=40, num_train=60, num_val=4, num_test=4, seed=1)[:60]
    inside = total = 0
    for place, (name, policy) in enumerate(POLICIES.items()):
        wanted = NUM_STATES * (place + 1) // len(POLICIES) - total
        parents = play_policy(tokenizer, name, episodes(tasks, 3, seed=place))
        by_id = {task.task_id: task for task in tasks}
        exact_of = {task.task_id: ExactValues(task, policy) for task in tasks}
        states: dict[tuple[str, object], tuple[Rollout, int, float]] = {}
        for parent in parents:
            actions = [STYLE.parse(step.text) for step in parent.steps]
            optimal = PHONE.solver_value(by_id[parent.task_id], parent.seed, actions)
            env = PhoneEnv()
            env.reset(by_id[parent.task_id], 0)
            for index, action in enumerate(actions):
                exact = exact_of[parent.task_id](actions[:index])
                assert exact <= optimal[index] + 1e-12
                if 0 < exact < 1:
                    states.setdefault((parent.task_id, env.state), (parent, index, exact))
                env.step(action)
        chosen = list(states.values())[:wanted]
        assert len(chosen) == wanted
        requests = [
            EpisodeRequest(
                f"c{i}-{number}",
                by_id[parent.task_id],
                "g",
                0,
                0,
                number,
                seed=10**6 * (place + 1) + 100 * i + number,
                parent=parent,
                start_step_index=index,
            )
            for i, (parent, index, _) in enumerate(chosen)
            for number in range(K)
        ]
        rewards = [rollout.reward for rollout in play_policy(tokenizer, name, requests)]
        for i, (_, _, exact) in enumerate(chosen):
            bounds = clopper_pearson(round(sum(rewards[i * K : (i + 1) * K])), K)
            inside += bounds.low <= exact <= bounds.high
        total += len(chosen)
    assert total == NUM_STATES
    assert inside >= 0.93 * NUM_STATES, inside
