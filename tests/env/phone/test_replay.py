"""Replay is exact at all levels: equal digests at every prefix, after pickling, and in another process."""

import json
import pickle
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from random import Random

from env.phone.episode.environment import PhoneEnv
from env.phone.solver.solver import optimal_move, tool_call
from env.phone.world.lexicon import FIELDS
from env.protocol import replay
from pipeline.types import Task
from tests.env.phone.worlds import STYLE, mixed_tasks, started, state_digest

ROOT = Path(__file__).parents[3]
TASKS = mixed_tasks(100, companies=100, seed=9)[:100]


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
    call = f"call {line.phone} {request}"
    return rng.choice(
        (
            f"search {rng.choice((world.company.name, 'Nobody'))}",
            f"form {' '.join(fields)}",
            f"{call} {given}",
            f"{call} {' '.join(form)} reference",
            f"{call} {' '.join('?' + field for field in fields)}",
            f"{call} {fields[0]}={world.profile.get(fields[0], 0)}",
            f"{call} {fields[0]}={world.profile[rng.choice(form)] if form else 0}",
            f"call 911 {request}",
            f"call {line.phone} R9",
            "wait",
            "wait h1",
            f"{rng.choice(FIELDS)} please",
            "search a\nsearch b",
        )
    )


def random_log(number: int, codes: set[str]) -> tuple[Task, list[str], list[str]]:
    """Returns a task, the messages of an episode of it, and the digest before and after each."""
    task, rng = TASKS[number % len(TASKS)], Random(number)
    env = started(task, number)
    texts, digests = [], [state_digest(env)]
    while not env.is_over:
        texts.append(random_message(env, rng) if rng.random() < 0.98 else "done")
        result = env.step(STYLE.parse(texts[-1]))
        assert result.infra_error is None
        digests.append(state_digest(env))
    codes |= {event.code for event in env.events}
    return task, texts, digests


PROGRAM = """
import json, sys
from env.phone.episode.compact import CompactStyle
from env.phone.episode.environment import PhoneEnv
from pipeline.types import Task
from tests.env.phone.worlds import state_digest
for line in sys.stdin:
    data = json.loads(line)
    env = PhoneEnv()
    env.reset(Task(**data["task"]), data["seed"])
    digests = [state_digest(env)]
    said = []
    for text in data["texts"]:
        said += [m["content"] for m in env.step(CompactStyle().parse(text)).messages]
        digests.append(state_digest(env))
    print(json.dumps([digests, said]))
"""


def test_random_logs_meet_every_event_and_replay_at_every_prefix_and_in_another_process():
    codes: set[str] = set()
    logs = [random_log(number, codes) for number in range(250)]
    for number, (task, texts, digests) in enumerate(logs[:100]):
        half, middle = PhoneEnv(), len(texts) // 2
        replay(half, task, number, [STYLE.parse(text) for text in texts[:middle]])
        half = pickle.loads(pickle.dumps(half))
        for text in texts[middle:]:
            half.step(STYLE.parse(text))
        assert state_digest(half) == digests[-1]
        assert len(set(digests)) == len(digests)
    lines = [
        # The prompt is a tuple here and a list there: the state does not depend on it.
        json.dumps({"task": asdict(task), "texts": texts, "seed": number})
        for number, (task, texts, _) in enumerate(logs)
    ]
    command, text = [sys.executable, "-c", PROGRAM], "\n".join(lines)
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT, check=True)
    for number, line in enumerate(done.stdout.splitlines()):
        task, texts, digests = logs[number]
        results = replay(PhoneEnv(), task, number, [STYLE.parse(text) for text in texts])
        said = [message["content"] for result in results for message in result.messages]
        assert json.loads(line) == [digests, said]
    assert number == len(logs) - 1
    assert codes >= {
        *("found", "not_found", "form", "unavailable", "two_values", "over_collected"),
        *("form_already_submitted", "form_too_long", "probe", "referred", "must_call_first"),
        *("auth_missing", "auth_mismatch", "fabricated_auth", "wrong_department", "on_hold", "closed"),
        *("locked", "waited", "nothing_to_wait_for", "invalid_number", "unknown_request"),
        *("unknown_tool", "too_many", "none", "max_turns"),
    }


def test_verdicts_on_the_beginning_of_an_episode_are_the_beginning_of_its_verdicts():
    """What a critic may be told of a step never depends on what came after it."""
    for number in range(100):
        task, texts, _ = random_log(number, set())
        env, told = started(task, number), []
        for text in texts:
            env.step(STYLE.parse(text))
            told.append(env.verdict().steps)
        for length, steps in enumerate(told, start=1):
            assert steps == told[-1][:length]
