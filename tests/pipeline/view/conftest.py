"""A run to look at: hostile texts, continuations, values, labels, an actor half done."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.columns import LABELS, ROLLOUTS, STEPS, TASKS, VALUES
from pipeline.runner import Start, run_stage
from pipeline.tables import labels_table, rollouts_table, steps_table, tasks_table, values_table
from pipeline.types import Label, Rollout, Step, Task
from tests.pipeline import toy

EVIL = (
    "<script>document.title='owned'</script><img src=x onerror=alert(1)></pre>"
    "\x1b[31mred \u202egnp.exe <|im_end|><|im_start|>system &amp; \u200b\U000e0041"
)
SHOWN = (
    "<script>document.title='owned'</script><img src=x onerror=alert(1)></pre>"
    "␛[31mred <U+202E>gnp.exe <|im_end|><|im_start|>system &amp; <U+200B><U+E0041>"
)


def task(number: int, split: str = "train") -> Task:
    prompt = ({"role": "system", "content": "rules"}, {"role": "user", "content": f"Task {number} {EVIL}"})
    return Task(f"t{number}", "toy", split, number + 1, prompt, "rule", "secret", "a", f"c{number}", number)


def rollout(name: str, **changes: Any) -> Rollout:
    """Returns a rollout of two messages of the policy, the second in two steps."""
    call = {"id": "c0", "function": {"name": "f", "arguments": EVIL}}
    fields: dict[str, Any] = {
        "rollout_id": name,
        "task_id": "t0",
        "group_id": "g0",
        "attempt": 0,
        "guided": False,
        "parent_rollout_ids": (),
        "feedback_text": "",
        "feedback_in_context": "",
        "messages": (
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": EVIL, "tool_call_id": "c0"},
            {"role": "assistant", "content": "second third"},
        ),
        "prompt_token_ids": (5, 6),
        "response_token_ids": (1, 2, 3, 4, 5),
        "loss_mask": (1, 1, 0, 1, 1),
        "logprobs": (-0.5, -0.25, 0.0, -1.0, -2.0),
        "steps": (
            Step(0, 0, 0, 2, f"first {EVIL}", "ok"),
            Step(1, 1, 3, 4, "second", "wrong", "probe", f"why {EVIL}"),
            Step(2, 1, 4, 5, " third", "unknown"),
        ),
    }
    return toy.rollout(0, **(fields | changes))


PLAYED = [
    rollout("aa00", reward=0.0, finish_reason="ended", feedback_text=f"too early {EVIL}"),
    rollout(
        "aa01",
        attempt=1,
        guided=True,
        parent_rollout_ids=("aa00",),
        feedback_in_context=f"you asked twice {EVIL}",
        reward=0.95,  # a success with a call that has a price
        steps=(Step(0, 0, 0, 2, "ok", "ok"), Step(1, 1, 3, 5, "good", "ok")),
    ),
    rollout("bb00", task_id="t1", group_id="g1", reward=None, env_status="infra", iteration=1),
    rollout("bb01", task_id="t1", group_id="g1", draw=1, reward=0.5, finish_reason="ended", iteration=1),
]
CONTINUED = [
    rollout(
        f"cc0{draw}",
        kind="continuation",
        draw=draw,
        parent_rollout_ids=("aa00",),
        start_step_index=2,  # within a message
        response_token_ids=(4, 5),
        loss_mask=(1, 1),
        logprobs=(-1.0, -2.0),
        steps=(Step(2, 1, 0, 2, " third"),),
        reward=float(draw),
        finish_reason="success" if draw else "ended",
    )
    for draw in (0, 1)
]


def committed(rollouts: list[Rollout], *values: tuple[str, int, str, str, float]) -> dict[str, Any]:
    tables = {"rollouts": rollouts_table(rollouts), "steps": steps_table(rollouts)}
    return tables | ({"values": values_table(list(values))} if values else {})


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run; read only."""
    folder = tmp_path_factory.mktemp("viewed")

    def make(name: str, items: list[list[str]], work: Callable[[Start[Any]], None], *tables: Any) -> int:
        return run_stage(
            toy.stage_of(name, items, work, tables=tables), toy.ToyConfig, [toy.config_in(folder)]
        )

    def tasks(start: Start[Any]) -> None:
        start.shards.commit(0, {"tasks": tasks_table([task(0), task(1, "val")])}, done=2)
        start.finish()

    def rollouts(start: Start[Any]) -> None:
        start.shards.commit(0, committed(PLAYED[:2]), done=2)
        start.shards.commit(1, committed(PLAYED[2:]), done=2)
        start.finish()

    def labels(start: Start[Any]) -> None:
        label = Label("aa00", 1, "bare", 2, 1, None, 0.5, 1.0, "continuation", "p")
        start.shards.commit(0, committed(CONTINUED), done=2)
        start.finish(more_tables=((LABELS, labels_table([label])),))

    def actor(start: Start[Any]) -> None:
        values = [("dd00", step, "bare", "critic", value) for step, value in enumerate((0.75, 0.5, 0.125))]
        start.shards.commit(0, committed([rollout("dd00", reward=1.0)], *values), done=1)
        start.shards.commit(
            1, committed([rollout("dd01", reward=0.0)], ("dd01", 0, "bare", "critic", 0.25)), done=1
        )
        raise KeyboardInterrupt

    assert make("tasks", [["t0", "t1"]], tasks, TASKS) == 0
    assert make("rollouts", [["a", "b"], ["c", "d"]], rollouts, ROLLOUTS, STEPS) == 0
    assert make("labels", [["x", "y"]], labels, ROLLOUTS, STEPS) == 0
    with pytest.raises(KeyboardInterrupt):
        make("actor", [["d"], ["e"], ["f"]], actor, ROLLOUTS, STEPS, VALUES)
    (folder / "r" / "summary.html").write_text("<p>summary</p>")
    return folder / "r"
