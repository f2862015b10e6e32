"""Scripted episodes as text to learn from: of chosen quality, some with feedback on a failed attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from env.offer import Demonstrators
from env.protocol import Action, ChatStyle, Env, StepResult, Tools, replay
from pipeline.types import Feedback, Task

MAX_PREVIOUS_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One scripted episode.

    Attributes:
        policy: the scripted policy that played.
        pieces: (text, whether it is the demonstrator's) in order; their concatenation is the episode.
        success: whether the task was solved.
        guided: whether the prompt tells of a failed attempt.
    """

    policy: str
    pieces: tuple[tuple[str, bool], ...]
    success: bool
    guided: bool


def demonstrate(
    demonstrators: Demonstrators,
    make_env: Callable[[], Env],
    task: Task,
    *,
    style: ChatStyle,
    shares: Mapping[str, float],
    guided_share: float,
    noise: float,
    seed: int,
    thoughts: bool = False,
) -> Demonstration:
    """Returns one demonstration on a task, by a policy drawn from the shares.

    A guided one first plays one or two attempts with other draws; the feedback on the failed ones opens the
    prompt.
    After feedback half the demonstrators know what it says (`after_feedback`), half do not care.

    Args:
        demonstrators: who plays.
        make_env: makes an environment that gives feedback.
        task: what is to be solved.
        style: prompt style.
        shares: scripted policy -> weight.
        guided_share: chance of a guided demonstration, if the first attempt fails.
        noise: share of random acts of the noisy policies.
        seed: everything random follows from it.
        thoughts: whether the demonstrator writes before each call whom it calls and what for.
    """
    rng = Random(seed)
    names, weights = list(shares), list(shares.values())
    earlier: list[list[Action]] = []
    previous: list[str] = []
    for _ in range(rng.randint(1, MAX_PREVIOUS_ATTEMPTS) if rng.random() < guided_share else 0):
        first_seed = rng.getrandbits(62)
        policy = rng.choices(names, weights)[0]
        actions = demonstrators.play(task, policy, first_seed, noise, style=style)
        _, failed, feedback, _ = _played(make_env(), task, first_seed, actions)
        if failed and feedback is not None:
            # The next attempt plays this one again, under its own seed: values written out, as some styles
            # need them, would be another seed's references there.
            earlier.append(demonstrators.play(task, policy, first_seed, noise))
            previous.append(style.attempt_line(actions, feedback.text))
    previous = list(dict.fromkeys(previous))
    policy = rng.choices(names, weights)[0]
    if previous and rng.random() < 0.5 and demonstrators.after_feedback is not None:
        policy = demonstrators.after_feedback
    own_seed = rng.getrandbits(62)
    actions = demonstrators.play(task, policy, own_seed, noise, earlier, style, thoughts)
    results, failed, _, tools = _played(make_env(), task, own_seed, actions)
    return Demonstration(
        policy=policy,
        pieces=pieces_of(style, task, previous, actions, results, tools),
        success=not failed,
        guided=bool(previous),
    )


def _played(
    env: Env, task: Task, seed: int, actions: Sequence[Action]
) -> tuple[list[StepResult], bool, Feedback | None, Tools]:
    """Returns the environment's results, whether the episode failed, the feedback on it, and its tools."""
    results = replay(env, task, seed, actions)
    return results, not env.verdict().success, env.feedback(), env.spec.tools


def pieces_of(
    style: ChatStyle,
    task: Task,
    previous_attempts: Sequence[str],
    actions: Sequence[Action],
    results: Sequence[StepResult],
    tools: Tools | None = None,
) -> tuple[tuple[str, bool], ...]:
    """Returns an episode as the pieces a player would encode one by one; `tools` are those of its level."""
    pieces = [(style.render_prompt(task.prompt, previous_attempts, tools), False)]
    for action, result in zip(actions, results, strict=True):
        pieces.append((action.text + style.stop_token, True))
        if not (result.terminated or result.truncated):
            pieces.append((style.render_replies(result.messages), False))
    return tuple(pieces)
