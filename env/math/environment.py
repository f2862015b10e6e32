"""The math environment: one message solves a task; its answer is graded, its lines are checked."""

from typing import Any

from pydantic import JsonValue

from env.math.answers import MAX_ANSWER, Judgement, extract, judge
from env.math.feedback import Verbosity, rule_feedback
from env.math.marks import asks_for_box
from env.math.steps import LineCheck, check_lines, verdicts
from env.protocol import Action, EnvSpec, Observation, StepResult
from env.sandbox import Limits, shared_sandbox
from pipeline.types import Event, Feedback, Task, Verdict

LIMITS = Limits(seconds=2.0, memory_mb=1024)
"""Of a judgement by opinions (start value)."""


class InfraError(Exception):
    """An answer could not be judged, not by the policy's fault; says which kind of failure it was."""


class NeedsOpinionsError(Exception):
    """A judgement rests on formulas, which are compared in the sandbox alone."""


def _ask_elsewhere(gold: str, answer: str) -> bool:
    raise NeedsOpinionsError


def graded(gold: str, answer: str | None) -> Judgement:
    """Returns the judgement on an answer. Raises InfraError if the sandbox gave none."""
    if answer is None:
        return Judgement(False, "no_answer")
    try:
        return judge(gold, answer, _ask_elsewhere)
    except NeedsOpinionsError:
        argument: JsonValue = {"gold": gold, "answer": answer[: MAX_ANSWER + 1]}
        outcome = shared_sandbox().call("env.math.opinions:judge_text", argument, LIMITS)
    if outcome.status != "ok":
        unavailable = outcome.status == "unavailable"
        raise InfraError("sandbox_unavailable" if unavailable else f"verifier_{outcome.status}")
    found: Any = outcome.value
    return Judgement(found["is_right"], found["why"])


class MathEnv:
    """An episode of one message.

    A task's details may hold a `modulus` of its calculations, and a `mark` behind which answers stand.
    """

    spec = EnvSpec((), max_turns=1, in_threads=True)

    def __init__(self, verbosity: Verbosity = "observed") -> None:
        self.verbosity: Verbosity = verbosity

    def reset(self, task: Task, seed: int) -> Observation:
        """Starts an episode; nothing of it is drawn, so the seed changes nothing."""
        self._task = task
        self._why = ""
        self._checks: list[LineCheck] = []
        self._verdict = Verdict(0.0, False)
        return Observation(task.prompt)

    def step(self, action: Action) -> StepResult:
        """Grades the message, whatever the parser made of it: there is nothing to call."""
        modulus, mark = self._task.details.get("modulus"), self._task.details.get("mark", "")
        question = "\n".join(str(message["content"]) for message in self._task.prompt)
        self._place = f'behind "{mark}"' if mark and not asks_for_box(question) else "in \\boxed{}"
        self._checks = check_lines(action.text, question, modulus)
        try:
            answer = extract(action.text, mark)
            is_right, self._why = graded(self._task.ground_truth, answer)
        except InfraError as error:
            self._verdict = Verdict(None, None, infra_error=str(error))
            return StepResult((), terminated=True, infra_error=str(error))
        reward = float(is_right)
        self._verdict = Verdict(reward, is_right, steps=verdicts(self._checks))
        events = [
            Event(check.code, 0, f"line {check.number}", detail=check.quote)
            for check in self._checks
            if check.code
        ]
        events.append(Event(self._why or "solved", 0))
        return StepResult((), reward, terminated=True, events=tuple(events))

    def verdict(self) -> Verdict:
        """Grades the answer, and each line by itself and what came before it."""
        return self._verdict

    def feedback(self) -> Feedback | None:
        """Says where the solution went wrong; None if it is right, was not judged, or has not come yet."""
        if not self._why:
            return None
        return rule_feedback(self._checks, self._why, self.verbosity, self._task.ground_truth, self._place)

    def close(self) -> None:
        """Frees nothing: the sandbox is the process's own."""
