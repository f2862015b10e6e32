"""Whether the engine has room for the opening prompts of the tasks that a run plays."""

import json
import math
from contextlib import suppress

from tokenizers import Tokenizer

from env.catalog import offer_of
from env.play.guard import FailureError, guarded, opened
from pipeline.errors import ConfigError
from pipeline.runner import Start
from pipeline.types import Task
from stages.settings import Config
from stages.wiring.inputs import tasks_by_id


def check_prompts(start: Start[Config]) -> None:
    """Raises ConfigError if an opening prompt is too long to be answered, before anything is played.

    Of each level, whose tools may be its own, the longest task in bytes stands for the others: tokens follow
    them closely, and no set is tokenised whole. What feedback adds to a prompt is known in play alone.
    """
    config, sft = start.config, start.inputs["sft"]
    positions = json.loads(sft.path("policy/config.json").read_bytes()).get("max_position_embeddings")
    most, why = room_of(config, math.inf if positions is None else positions)
    tokenizer = Tokenizer.from_file(str(sft.path("policy/tokenizer.json")))
    tokenizer.no_truncation()
    splits = ("train", "val", *config.held_out)
    tasks = (task for task in tasks_by_id(start).values() if task.split in splits)
    for task in {task.level: task for task in sorted(tasks, key=_bytes)}.values():
        with suppress(FailureError):  # counted in play
            size = len(tokenizer.encode(_opening(config, task), add_special_tokens=False))
            if size > most:
                raise ConfigError(
                    f"the opening prompt of task {task.task_id} ({task.split} {task.index}) has {size:,} "
                    f"tokens; allowed: {most:,}, as {why}, or leave out such tasks: make tasks SET=--fresh"
                )


def room_of(config: Config, positions: float) -> tuple[float, str]:
    """Returns the most tokens of a bare prompt that the engine takes, and why, with what would raise it."""
    response, row = config.sampling.max_response_tokens, config.row_tokens
    if config.engine.kind == "vllm" and row < positions:
        return row - response, (
            f"vLLM is started for rows of {row:,}, a response of {response:,} included. Next: a larger "
            "prompt.max_feedback_tokens, which makes room for longer prompts"
        )
    return positions - 1, (
        f"the policy has {positions:,} positions. Next: a base with more (sft.base), or where it was made "
        "from scratch a larger prompt.max_feedback_tokens and make sft SET=--fresh"
    )


def _bytes(task: Task) -> int:
    return sum(len(message["content"].encode()) for message in task.prompt)


def _opening(config: Config, task: Task) -> str:
    """Returns the text that a task's bare episodes begin with."""
    offer = offer_of(config.tasks.environment)
    env = guarded("make_env", lambda: offer.make_env(config.tasks, config.prompt.verbosity))
    try:
        messages = opened(env, task, 0).messages
        return config.style().render_prompt(messages, tools=env.spec.tools)
    finally:
        with suppress(Exception, SystemExit):  # as in play: nothing depends on it
            env.close()
