"""Rebuilds an episode's state with one step changed, as tokens: what probes of a critic look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from env.protocol import ChatStyle, Env
from pipeline.types import Rollout, Step, Task


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of an episode, and the state that it is compared with.

    Attributes:
        kind: the probe's name.
        start: the original steps before this one stay.
        texts: messages that are played from there in place of the original ones.
        compare: the original state s_i that the changed state is set against.
        same_events: whether the changed messages must do exactly what the original ones did.
        other_prompt: whether the prompt belongs to another task.
    """

    kind: str
    start: int
    texts: tuple[str, ...]
    compare: int
    same_events: bool = False
    other_prompt: bool = False


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
    """Returns the changed episode up to the state in question, which is its only step.

    Replies are the environment's own, replayed; what stays of the original keeps its tokens.

    Args:
        rollout: the original, from its first step.
        task: its task.
        edit: what changes.
        env: of the task; it is reset.
        style: of the rollout.
        tokenizer: of the rollout.
        max_length: most tokens of prompt and response.
        other_prompt: the prompt in token ids, for an edit that wants another task's.

    Returns:
        None if the changed episode is solved or cut off, does not fit, or does something else than asked.
    """
    kept = rollout.steps[: edit.start]
    place = rollout.steps[edit.start].token_start
    tokens = list(rollout.response_token_ids[:place])
    index = edit.start
    if edit.texts:
        env.reset(task, rollout.seed)
        for step in kept:
            env.step(style.parse(step.text))
        stop = tokenizer.convert_tokens_to_ids(style.stop_token)
        codes = []
        for number, text in enumerate(edit.texts):
            result = env.step(style.parse(text))
            if result.infra_error is not None or result.reward > 0:
                return None
            codes += [(event.code, event.target, event.fields) for event in result.events]
            tokens += [*tokenizer.encode(text, add_special_tokens=False), stop]
            tokens += tokenizer.encode(style.render_replies(result.messages), add_special_tokens=False)
            index += 1
            if result.truncated or (result.terminated and number + 1 < len(edit.texts)):
                return None
        if edit.same_events and codes != [
            (event.code, event.target, event.fields) for event in rollout.events if event.turn == edit.start
        ]:
            return None
    prompt = tuple(other_prompt) if edit.other_prompt else rollout.prompt_token_ids
    if len(tokens) >= rollout.max_response_tokens or len(prompt) + len(tokens) >= max_length:
        return None
    return replace(
        rollout,
        prompt_token_ids=prompt,
        response_token_ids=tuple(tokens),
        loss_mask=(0,) * len(tokens),
        logprobs=(0.0,) * len(tokens),
        steps=(Step(index, index, len(tokens), len(tokens), ""),),
    )
