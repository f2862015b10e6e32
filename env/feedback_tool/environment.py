"""An environment in which the policy may ask for feedback before it answers, or on its way."""

from dataclasses import replace

from env.chat.neutral import tool_text
from env.feedback_tool.calls import NAME, answer_spans, asked_about, is_call, schema
from env.feedback_tool.reward import CALL_PRICE, MAX_CALLS, tool_reward
from env.protocol import Action, Env, EnvSpec, Observation, StepResult
from pipeline.types import Event, Feedback, Message, StepVerdict, Task, Verdict

NO_ERROR = "No error was found."
"""Said of what is right; that it is right, nobody says."""


class FeedbackTool:
    """Another environment, and `get_feedback` in it, at most `MAX_CALLS` times.

    Where one message answers, a call submits an answer, which is graded but does not count, and another one
    may follow; a call too many is not run, so its episode ends without an answer. Elsewhere a call takes no
    turn of the other world and leaves it as it is; one too many is an invalid message there.
    """

    def __init__(self, inner: Env) -> None:
        self._inner = inner
        self._answers_once = inner.spec.max_turns == 1
        self.spec = self._with_tool()

    def reset(self, task: Task, seed: int) -> Observation:
        """Starts an episode."""
        self._begin = (task, seed)
        self._turn = self._calls = 0
        self._first: float | None = None  # R of what stood at the first call
        self._played: list[int] = []  # turns of the messages that the other world has seen
        self._submitted: list[StepVerdict] = []  # on answers that were asked about
        observation = self._inner.reset(task, seed)
        self.spec = self._with_tool()  # of the task's level
        return observation

    def _with_tool(self) -> EnvSpec:
        """Returns what the other environment offers, and the tool; calls come on top of its turns."""
        spec = self._inner.spec
        tools = (*spec.tools, schema(self._answers_once))
        return replace(spec, tools=tools, max_turns=spec.max_turns + MAX_CALLS)

    def step(self, action: Action) -> StepResult:
        """Plays one message, or answers a call."""
        turn, self._turn = self._turn, self._turn + 1
        if not is_call(action):
            return self._play(action, turn)
        if self._calls < MAX_CALLS:
            return self._answer_call(action, turn)
        if self._answers_once:
            return self._play(Action("", "none"), turn)
        return self._play(Action(action.text, "bad_args", problem="no more feedback"), turn)

    def _play(self, action: Action, turn: int) -> StepResult:
        self._played.append(turn)
        result = self._inner.step(action)
        is_over = result.terminated or result.truncated
        last = self._inner.verdict().reward if is_over else None
        return replace(
            result,
            messages=tuple(_answering(turn, message) for message in result.messages),
            reward=result.reward if last is None else result.reward + self._reward(last) - last,
            events=tuple(replace(event, turn=turn) for event in result.events),
        )

    def _answer_call(self, action: Action, turn: int) -> StepResult:
        events: tuple[Event, ...] = ()
        if self._answers_once:
            result = self._inner.step(Action(asked_about(action), "none"))
            if result.infra_error is not None:
                return StepResult((), infra_error=result.infra_error)
            events = tuple(replace(event, turn=turn) for event in result.events)
        verdict = self._inner.verdict()
        if verdict.reward is None:
            return StepResult((), infra_error=verdict.infra_error or "infra_error")
        feedback = None if verdict.success else self._inner.feedback()
        self._calls += 1
        self._first = verdict.reward if self._first is None else self._first
        if self._answers_once:
            self._submitted += _moved(verdict.steps, action, turn)
            self._inner.reset(*self._begin)
        said = tool_text(feedback.text if feedback else NO_ERROR)
        called = Event(NAME, turn, "solved" if verdict.success else "unsolved")
        return StepResult((_answering(turn, {"role": "tool", "content": said}),), events=(*events, called))

    def _reward(self, last: float) -> float:
        return tool_reward(last, last if self._first is None else self._first, self._calls)

    def verdict(self) -> Verdict:
        """Grades the episode as it stands, less the price of calls; steps of all answers have verdicts."""
        found = self._inner.verdict()
        if found.reward is None:
            return found
        steps = (replace(step, message_index=self._played[step.message_index]) for step in found.steps)
        return replace(
            found,
            reward=self._reward(found.reward),
            cost=found.cost + CALL_PRICE * self._calls,
            steps=(*self._submitted, *steps),
        )

    def feedback(self) -> Feedback | None:
        """Says what the other environment says of the last answer, or of all that happened."""
        return self._inner.feedback()

    def close(self) -> None:
        """Closes the other environment."""
        self._inner.close()


def _answering(turn: int, message: Message) -> Message:
    """Returns a tool's message as the answer to the call of a turn, counted with calls for feedback."""
    return {**message, "tool_call_id": f"call_{turn}_0"} if message["role"] == "tool" else message


def _moved(steps: tuple[StepVerdict, ...], action: Action, turn: int) -> list[StepVerdict]:
    """Returns verdicts on an answer as verdicts on the call that holds it.

    Where it stands there otherwise than as it was judged, all of them are on the place where it begins.
    """
    spans, answer = answer_spans(action), asked_about(action)
    start, end = spans[0] if spans else (0, 0)
    if action.text[start:end] != answer:
        return [replace(step, message_index=turn, char_start=start, char_end=None) for step in steps]
    return [
        replace(
            step,
            message_index=turn,
            char_start=start + step.char_start,
            char_end=end if step.char_end is None else start + step.char_end,
        )
        for step in steps
    ]
