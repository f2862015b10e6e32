"""Replay is exact at all levels: equal digests at every prefix, in this process and in another."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from random import Random

import pytest

from env.phone.episode.compact import CompactStyle
from env.phone.episode.environment import PhoneEnv
from env.phone.solver.moves import tool_call
from env.phone.solver.solver import optimal_move
from env.phone.world.lexicon import FIELDS
from env.phone.world.tasks import generate_tasks
from env.protocol import replay
from pipeline.types import Task

STYLE = CompactStyle()
ROOT = Path(__file__).parents[3]
TASKS = [
    task
    for task in generate_tasks(
        num_companies=100,
        num_train=100,
        num_val=1,
        num_test=1,
        level_shares=dict.fromkeys(range(1, 6), 0.2),
        seed=9,
    )
    if task.split == "train"
]


def random_message(env: PhoneEnv, rng: Random) -> str:
    """Returns a message: one of a shortest plan, any call, at times nonsense."""
    world = env.world
    if rng.random() < 0.3 and (best := optimal_move(world, env.state)) is not None:
        return STYLE.action_of(tool_call(world, best)).text
    line = rng.choice(world.company.departments)
    request = rng.choice(world.requests).request_id
    form = sorted(env.state.form or ())
    fields = rng.sample(world.company.vocabulary, rng.randint(1, 5))
    given = " ".join(rng.sample(form, rng.randint(0, len(form))))
    return rng.choice(
        (
            f"search {rng.choice((world.company.name, 'Nobody'))}",
            f"form {' '.join(fields)}",
            f"call {line.phone} {request} {given}",
            f"call {line.phone} {request} {' '.join(form)} reference",
            f"call {line.phone} {request} {' '.join('?' + field for field in fields)}",
            f"call {line.phone} {request} {fields[0]}={world.profile.get(fields[0], 0)}",
            f"call {line.phone} {request} {fields[0]}={world.profile[rng.choice(form)] if form else 0}",
            f"call 911 {request}",
            f"call {line.phone} R9",
            "wait",
            "wait h1",
            f"{rng.choice(FIELDS)} please",
            "search a\nsearch b",
        )
    )


def random_log(number: int) -> tuple[Task, list[str], list[str]]:
    """Returns a task, the messages of an episode of it, and the digest before and after each."""
    task, rng = TASKS[number % len(TASKS)], Random(number)
    env = PhoneEnv()
    env.reset(task, number)
    texts, digests = [], [env.state_digest()]
    while not env.is_over:
        texts.append(random_message(env, rng) if rng.random() < 0.98 else "done")
        result = env.step(STYLE.parse(texts[-1]))
        assert result.infra_error is None
        digests.append(env.state_digest())
    return task, texts, digests


def check_every_prefix(task: Task, texts: list[str], digests: list[str], seed: int) -> None:
    actions = [STYLE.parse(text) for text in texts]
    for k in range(len(actions) + 1):
        env = PhoneEnv()
        replay(env, task, seed, actions[:k])
        assert env.state_digest() == digests[k]
    assert len(set(digests)) == len(digests)


PROGRAM = """
import json, sys
from env.phone.episode.compact import CompactStyle
from env.phone.episode.environment import PhoneEnv
from pipeline.types import Task
for line in sys.stdin:
    data = json.loads(line)
    env = PhoneEnv()
    env.reset(Task(**data["task"]), data["seed"])
    digests = [env.state_digest()]
    for text in data["texts"]:
        env.step(CompactStyle().parse(text))
        digests.append(env.state_digest())
    print(json.dumps(digests))
"""


def test_three_hundred_random_logs_replay_at_every_prefix_and_in_another_process():
    logs = [random_log(number) for number in range(300)]
    for number, (task, texts, digests) in enumerate(logs):
        check_every_prefix(task, texts, digests, number)
    lines = [
        json.dumps({"task": asdict(task), "texts": texts, "seed": number})
        for number, (task, texts, _) in enumerate(logs)
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [digests for _, _, digests in logs]


def test_random_logs_meet_every_kind_of_event():
    codes = set()
    for number in range(300):
        task, texts, _ = random_log(number)
        env = PhoneEnv()
        replay(env, task, number, [STYLE.parse(text) for text in texts])
        codes |= {event.code for event in env.events}
    assert codes >= {
        *("found", "not_found", "form", "unavailable", "two_values", "over_collected"),
        *("form_already_submitted", "form_too_long", "probe", "referred", "must_call_first"),
        *("auth_missing", "auth_mismatch", "fabricated_auth", "wrong_department", "on_hold", "closed"),
        *("locked", "waited", "nothing_to_wait_for", "invalid_number", "unknown_request"),
        *("unknown_tool", "too_many", "none", "max_turns"),
    }


@pytest.mark.slow
def test_ten_thousand_random_logs_replay_at_every_prefix():
    for number in range(10_000):
        check_every_prefix(*random_log(number), number)
