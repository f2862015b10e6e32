"""Scripted policies that ask: each one of an environment, as somebody who may call for feedback."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from env.chat.style import ChatStyle
from env.feedback_tool.calls import ANSWER, NAME, LineStyle, is_call
from env.feedback_tool.reward import MAX_CALLS
from env.offer import Demonstrate, Demonstrators
from env.play.guard import graded, played
from env.protocol import Action, Env, ToolCall
from pipeline.types import Task

ASKS = f"+{NAME}"
"""Ends the name of a policy that asks."""
SHARE = 0.13
"""Of demonstrations by policies that ask (start value)."""
NEEDLESS = 0.5
"""Of right answers that are asked about all the same: when to ask is left to learn (start value)."""
MENDED = 0.75
"""Of wrong answers that are given next by who knows what feedback says; else the same policy tries again."""


def demonstrators_that_ask(demonstrators: Demonstrators, make_env: Callable[[], Env]) -> Demonstrators:
    """Returns the demonstrators, and each once more as one that asks: `careful`, `careful+get_feedback`.

    Where one message answers, these ask about an answer that is wrong, and about some that are right; what
    finds no error they give again. Elsewhere they ask once on the way and go on as they would.
    """
    shares = {name: share * (1 - SHARE) for name, share in demonstrators.shares.items()}
    asking = {name + ASKS: share * SHARE for name, share in demonstrators.shares.items()}
    after = demonstrators.after_feedback
    play = _play(demonstrators.play, make_env, after)
    return replace(demonstrators, shares={**shares, **asking}, play=play)


def _play(play: Demonstrate, make_env: Callable[[], Env], after: str | None) -> Demonstrate:
    def demonstrate(
        task: Task,
        policy: str,
        seed: int,
        noise: float,
        earlier: Sequence[Sequence[Action]],
        style: ChatStyle | None,
        thoughts: bool,
    ) -> list[Action]:
        inner = style.inner if isinstance(style, LineStyle) else style
        known = [[action for action in actions if not is_call(action)] for actions in earlier]

        def actions_of(name: str, own_seed: int) -> list[Action]:
            return play(task, name, own_seed, noise, known, inner, thoughts)

        name = policy.removesuffix(ASKS)
        if name == policy:
            return actions_of(name, seed)
        rng, env = Random(f"{seed}:{NAME}"), make_env()
        if env.spec.max_turns > 1:
            actions = actions_of(name, seed)
            at = rng.randrange(1, max(2, len(actions)))
            return [*actions[:at], _call({}, style), *actions[at:]] if len(actions) > 1 else actions
        asked: list[Action] = []
        for number in range(MAX_CALLS + 1):
            [answer] = actions_of(name, seed + number)
            played(env, task, seed, [answer])
            is_right = bool(graded(env).success)
            if number == MAX_CALLS or (is_right and (asked or rng.random() >= NEEDLESS)):
                break
            asked.append(_call({ANSWER: answer.text}, style))
            if is_right:
                break
            if after is not None and rng.random() < MENDED:
                name = after
        return [*asked, answer]

    return demonstrate


def _call(arguments: dict[str, str], style: ChatStyle | None) -> Action:
    call = ToolCall(NAME, arguments)
    return Action(NAME, "ok", (call,)) if style is None else style.action_of(call)
