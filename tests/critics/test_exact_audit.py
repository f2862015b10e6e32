"""The audit by fresh continuations against exactly enumerated V^pi, through the player that audits use."""

from random import Random
from typing import Any

import pytest
from scipy.stats import binomtest

from benchmarks._phone_plans import MarkovPolicy, policy_value, slipping
from env.phone.episode.environment import PhoneEnv
from env.phone.offer import PHONE
from env.phone.solver.solver import tool_call
from env.phone.world.tasks import generate_tasks
from env.play.player import Player
from env.play.requests import EpisodeRequest, PlaySettings
from env.play.units import Episodes, play_unit
from pipeline.engines.scripted import ScriptedEngine
from pipeline.models.tiny import train_tokenizer
from pipeline.types import Rollout, Task

STYLE = PHONE.style()
SLIPS = (0.1, 0.2, 0.35)
NUM_STATES, K = 300, 32


def play_policy(tokenizer: Any, policy: MarkovPolicy, requests: list[EpisodeRequest]) -> list[Rollout]:
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
        env = worlds[rollout_id]
        chances = policy(env.world, env.state)
        [move] = Random(request.seed).choices(list(chances), list(chances.values()))
        action = STYLE.action_of(tool_call(env.world, move))
        env.step(action)
        return list(tokenizer.encode(action.text + STYLE.stop_token, add_special_tokens=False))

    engine = ScriptedEngine(reply, "scripted", max_length=8192)
    settings = PlaySettings(1.0, 4096, 64, "scripted", "tok", STYLE.digest)
    player = Player(engine, tokenizer, STYLE, settings, lambda task: PHONE.env())
    return play_unit(Episodes(requests), player).rollouts


def uncertain_states(
    tasks: dict[str, Task], parents: list[Rollout], policy: MarkovPolicy
) -> list[tuple[Rollout, int, float]]:
    """Returns rollout, step and V^pi of distinct states with V^pi inside (0, 1), none above V*."""
    found: dict[tuple[str, object], tuple[Rollout, int, float]] = {}
    for parent in parents:
        task, actions = tasks[parent.task_id], [STYLE.parse(step.text) for step in parent.steps]
        env = PHONE.env()
        env.reset(task, 0)
        for index, optimal in enumerate(PHONE.solver_value(task, parent.seed, actions)):
            if (task.task_id, env.state) not in found:
                exact = policy_value(env.world, policy, env.state)
                assert exact <= optimal + 1e-12
                if 0 < exact < 1:
                    found[task.task_id, env.state] = parent, index, exact
            env.step(actions[index])
    return list(found.values())


@pytest.mark.slow
def test_the_audit_agrees_with_enumerated_values_and_the_solver_bounds_them(tmp_path: Any) -> None:
    """300 states of levels 1 to 3: at least 93 % lie in their 95 % Clopper-Pearson intervals."""
    made = generate_tasks(
        num_companies=40, num_train=45, num_val=4, num_test=4, level_shares={1: 0.3, 2: 0.3, 3: 0.4}, seed=1
    )[:45]
    tasks = {task.task_id: task for task in made}
    tokenizer = train_tokenizer([STYLE.render_prompt(task.prompt, ()) for task in made], 400, tmp_path, "")
    inside = total = 0
    for place, slip in enumerate(SLIPS):
        policy = slipping(slip)
        episodes = [
            EpisodeRequest(f"r{i}-{j}", task, f"g{i}", 0, 0, j, seed=10**4 * place + 100 * i + j)
            for i, task in enumerate(made)
            for j in range(3)
        ]
        states = uncertain_states(tasks, play_policy(tokenizer, policy, episodes), policy)
        chosen = Random(place).sample(states, NUM_STATES // len(SLIPS))
        requests = [
            EpisodeRequest(
                f"c{i}-{number}",
                tasks[parent.task_id],
                "g",
                0,
                0,
                number,
                seed=10**6 * (place + 1) + 100 * i + number,
                kind="continuation",
                parent=parent,
                start_step_index=index,
            )
            for i, (parent, index, _) in enumerate(chosen)
            for number in range(K)
        ]
        rewards = [float(rollout.reward or 0) for rollout in play_policy(tokenizer, policy, requests)]
        for i, (_, _, exact) in enumerate(chosen):
            bounds = binomtest(round(sum(rewards[i * K : (i + 1) * K])), K).proportion_ci()  # exact
            inside += bounds.low <= exact <= bounds.high
        total += len(chosen)
    assert total == NUM_STATES
    assert inside >= 0.93 * NUM_STATES, inside
