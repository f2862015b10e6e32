"""What an environment offers once its policies may ask for feedback."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from env.chat.style import ChatStyle
from env.feedback_tool.calls import NAME, with_call
from env.feedback_tool.environment import FeedbackTool
from env.feedback_tool.reward import MAX_CALLS
from env.feedback_tool.scripted import demonstrators_that_ask
from env.offer import EnvironmentOffer, TaskSettings

MakeStyle = Callable[[Sequence[str], bool], ChatStyle]


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
