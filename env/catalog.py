"""The environments by name: built-in ones, anybody's own as `module:name`, each also `+get_feedback`."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module

from env.chat.style import ChatStyle
from env.feedback_tool.calls import NAME, with_call
from env.feedback_tool.environment import FeedbackTool
from env.feedback_tool.reward import MAX_CALLS
from env.offer import EnvironmentOffer, TaskSettings
from env.play.asking import demonstrators_that_ask
from pipeline.errors import ConfigError

BUILT_IN = {
    "phone": "env.phone.offer:PHONE",
    "math": "env.math.offer:MATH",
    "code": "env.code.offer:CODE",
    "short": "env.short.offer:SHORT",
}
"""Name -> where its offer is; loaded when it is asked for."""
MakeStyle = Callable[[Sequence[str], bool], ChatStyle]


@cache
def offer_of(name: str) -> EnvironmentOffer:
    """Returns the offer of a name in `BUILT_IN`, or of `module:name`, also in the working directory.

    With `+get_feedback` after it, policies may ask for feedback.
    """
    if name.endswith(f"+{NAME}"):
        return with_feedback_tool(offer_of(name.removesuffix(f"+{NAME}")))
    module_name, colon, attribute = BUILT_IN.get(name, name).partition(":")
    where = f"tasks.environment = {name!r}"
    if not colon:
        raise ConfigError(
            f"{where} is not built in; allowed: {', '.join(BUILT_IN)}, or module:name of one of your own "
            f"(docs/environments.md), each also with +{NAME}"
        )
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # a console script does not look there by itself
    try:
        offer = getattr(import_module(module_name), attribute)
    except ConfigError as error:  # of the offer itself
        raise ConfigError(f"{where}: {error}") from error
    except Exception as error:  # whatever a module of somebody else's does when it is loaded
        raise ConfigError(
            f"{where} cannot be loaded: {type(error).__name__}: {error}. Next: check that "
            f"`python -c 'import {module_name}'` works in this folder and defines {attribute}"
        ) from error
    if not isinstance(offer, EnvironmentOffer):
        raise ConfigError(f"{where} is a {type(offer).__name__}; allowed: an env.offer.EnvironmentOffer")
    return offer


def with_feedback_tool(offer: EnvironmentOffer) -> EnvironmentOffer:
    """Returns the offer of the same tasks with the tool `get_feedback`.

    Without what knows the other world's states alone: its solver and the edits that probe a critic.
    """
    answers_once = offer.env().spec.max_turns == 1

    def styled(make: MakeStyle) -> MakeStyle:
        return lambda added, thinking: with_call(make(added, thinking), answers_once, added, thinking)

    def max_steps(settings: TaskSettings) -> int:
        steps = offer.steps_at_most(settings)
        return steps * (1 + MAX_CALLS) if answers_once else steps + MAX_CALLS

    return replace(
        offer,
        name=f"{offer.name}+{NAME}",
        make_env=lambda settings, verbosity: FeedbackTool(offer.make_env(settings, verbosity)),
        styles={name: styled(make) for name, make in offer.styles.items()},
        max_steps=max_steps,
        demonstrators=offer.demonstrators and demonstrators_that_ask(offer.demonstrators, offer.env),
        solver_value=None,
        probe_edits=None,
        feedback_tool=True,
    )
