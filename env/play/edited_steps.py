"""Rebuilds an episode's state with one step changed, as tokens: what probes of a critic look at."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from env.chat.style import ChatStyle
from env.offer import Edit
from env.play.steps import graded_steps
from env.protocol import Env
from pipeline.types import Rollout, Step, Task


def changed_state(
    rollout: Rollout,
    task: Task,
    edit: Edit,
    *,
    env: Env,
    style: ChatStyle,
    tokenizer: Any,
    max_length: int,
    other_prompt: Sequence[int] = (),
) -> Rollout | None:
    """Returns the changed episode up to the state in question, which is the one before its last, empty step.

    Replies and verdicts are the environment's own, replayed; what stays of the original keeps its tokens, and
    under another task's prompt its verdicts. None if the changed episode is solved or cut off, does not fit
    into `max_length`, or does something else than asked.
    """
    tokens = list(rollout.response_token_ids[: rollout.steps[edit.start].token_start])
    steps = list(rollout.steps[: edit.start])
    if edit.texts:
        env.reset(task, rollout.seed)
        for step in rollout.steps[: edit.start]:
            env.step(style.parse(step.text))
        stop = tokenizer.convert_tokens_to_ids(style.stop_token)
        codes = []
        for number, text in enumerate(edit.texts, start=1):
            result = env.step(style.parse(text))
            if result.infra_error is not None or result.reward > 0:
                return None
            codes += [(event.code, event.target, event.fields) for event in result.events]
            begin = len(tokens)
            tokens += [*tokenizer.encode(text, add_special_tokens=False), stop]
            steps.append(Step(len(steps), len(steps), begin, len(tokens), text))
            tokens += tokenizer.encode(style.render_replies(result.messages), add_special_tokens=False)
            if result.truncated or (result.terminated and number < len(edit.texts)):
                return None
        if edit.same_events and codes != [
            (event.code, event.target, event.fields) for event in rollout.events if event.turn == edit.start
        ]:
            return None
        steps = list(graded_steps([(0, step) for step in steps], env.verdict().steps))
    prompt = tuple(other_prompt) if edit.other_prompt else rollout.prompt_token_ids
    if len(tokens) >= rollout.max_response_tokens or len(prompt) + len(tokens) >= max_length:
        return None
    return replace(
        rollout,
        prompt_token_ids=prompt,
        response_token_ids=tuple(tokens),
        loss_mask=(0,) * len(tokens),
        logprobs=(0.0,) * len(tokens),
        steps=(*steps, Step(len(steps), len(steps), len(tokens), len(tokens), "")),
    )
