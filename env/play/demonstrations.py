"""Scripted episodes as text to learn from: of chosen quality, some with feedback on a failed attempt."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from env.chat.style import ChatStyle
from env.feedback_tool.calls import answer_spans, wrong_answers
from env.offer import Demonstrators
from env.play.guard import graded, guarded, played, taught
from env.protocol import Action, Env, StepResult, Tools
from env.sessions import Session, replies_of, said_in
from pipeline.types import Message, Task

MAX_PREVIOUS_ATTEMPTS = 2
Span = tuple[int, int, int]
"""A part of a demonstration: which piece, its first character, one past its last."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode, scripted or recorded: pieces of text, and whether each is the demonstrator's.

    It is `guided` if the prompt tells of a failed attempt. Nobody learns what is `unlearnt`: answers that
    feedback then finds wrong. The calls for it are learnt.
    """

    policy: str
    pieces: tuple[tuple[str, bool], ...]
    success: bool
    guided: bool
    unlearnt: tuple[Span, ...] = ()
    weight: float = 1.0  # of all its tokens, against other demonstrations


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
    follows_feedback: float,
    thoughts: bool,
) -> Demonstration:
    """Returns one demonstration on a task; everything random in it follows from the seed.

    A guided one (a share of `guided_share`) first plays one or two attempts with other draws; the feedback on
    the failed ones opens the prompt. Then a share `follows_feedback` of the demonstrators knows what it says
    (`after_feedback`), the others do not care. With `thoughts` one writes before each call whom it calls and
    what for.

    Raises FailureError if an environment failed: nobody learns from such an attempt, nor from feedback on it.
    """
    rng = Random(seed)
    names, weights = list(shares), list(shares.values())
    earlier: list[list[Action]] = []
    previous: list[str] = []
    for _ in range(rng.randint(1, MAX_PREVIOUS_ATTEMPTS) if rng.random() < guided_share else 0):
        first_seed = rng.getrandbits(62)
        policy = rng.choices(names, weights)[0]
        actions = demonstrators.play(task, policy, first_seed, noise, (), style, False)
        env = guarded("make_env", make_env)
        played(env, task, first_seed, actions)
        if not graded(env).success and (feedback := taught(env)) is not None:
            # The next attempt plays this one again, under its own seed: values written out, as some styles
            # need them, would be another seed's references there.
            earlier.append(demonstrators.play(task, policy, first_seed, noise, (), None, False))
            previous.append(style.attempt_line(actions, feedback.text))
    previous = list(dict.fromkeys(previous))
    policy = rng.choices(names, weights)[0]
    if previous and rng.random() < follows_feedback and demonstrators.after_feedback is not None:
        policy = demonstrators.after_feedback
    own_seed = rng.getrandbits(62)
    actions = demonstrators.play(task, policy, own_seed, noise, earlier, style, thoughts)
    env = guarded("make_env", make_env)
    opening, results = played(env, task, own_seed, actions)
    return Demonstration(
        policy=policy,
        pieces=pieces_of(style, opening.messages, previous, actions, results, env.spec.tools),
        success=bool(graded(env).success),
        guided=bool(previous),
        unlearnt=tuple(
            (1 + 2 * number, start, end)  # after the prompt, messages and replies take turns
            for number, (action, result) in enumerate(zip(actions, results, strict=True))
            for start, end in wrong_answers(action, result.events)
        ),
    )


def pieces_of(
    style: ChatStyle,
    opening: Sequence[Message],
    previous_attempts: Sequence[str],
    actions: Sequence[Action],
    results: Sequence[StepResult],
    tools: Tools | None = None,
) -> tuple[tuple[str, bool], ...]:
    """Returns an episode as the pieces a player would encode one by one; `tools` are those of its level.

    The opening is what `reset` said, as in rollouts: it may be more than the task's prompt.
    """
    pieces = [(style.render_prompt(opening, previous_attempts, tools), False)]
    for action, result in zip(actions, results, strict=True):
        pieces.append((action.text + style.stop_token, True))
        if not (result.terminated or result.truncated):
            pieces.append((style.render_replies(result.messages), False))
    return tuple(pieces)


def session_pieces(
    style: ChatStyle,
    session: Session,
    opening: Sequence[Message],
    tools: Tools | None,
    wrong: Collection[int],
) -> tuple[tuple[tuple[str, bool], ...], tuple[Span, ...]]:
    """Returns a recorded session after an opening, as `pieces_of` does, and what is not learnt.

    That is what the `wrong` turns say, and the answer that a call among it asks about; the call is learnt.
    Raises BadRowError if the style cannot say a call.
    """
    pieces, unlearnt = [(style.render_prompt(opening, (), tools), False)], list[Span]()
    for number, turn in enumerate(session.turns):
        words, called = said_in(turn, style)
        said, place = words + called + style.stop_token, len(pieces)
        if number in wrong:
            unlearnt.append((place, 0, len(words if called else said)))
            answers = answer_spans(Action(called, "ok", turn.calls)) if called else []
            unlearnt += [(place, len(words) + start, len(words) + end) for start, end in answers]
        pieces.append((said, True))
        if number < len(session.turns) - 1:
            pieces.append((style.render_replies(replies_of(turn, number)), False))
    return tuple(pieces), tuple(unlearnt)
