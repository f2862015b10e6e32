"""The code environment: a problem, one message with a solution, and its judgement."""

from typing import Any, Literal

from env.code.answer import Solution, solution_of
from env.code.feedback import SOLVED, Verbosity, events_of, rule_feedback
from env.code.judge import LIMITS, Judgement, UnjudgedError, judge, texts_of, told_by
from env.code.problems import Problem
from env.code.steps import step_verdicts
from env.protocol import Action, EnvSpec, Observation, StepResult
from env.sandbox import shared_sandbox
from pipeline.types import Event, Feedback, StepVerdict, Task, Verdict

RewardStyle = Literal["all", "share"]


class CodeEnv:
    """An episode of one message; its last block of code is run on the task's tests in the sandbox.

    The reward is 1 if every test passes, else 0, or with `share` the share of tests that do. The verdict is
    made once, when the message is played.
    """

    def __init__(self, verbosity: Verbosity = "observed", reward: RewardStyle = "all") -> None:
        self.spec = EnvSpec((), max_turns=1, in_threads=True)
        self.verbosity: Verbosity = verbosity
        self.reward_style: RewardStyle = reward

    def reset(self, task: Task, seed: int) -> Observation:
        """Starts an episode; raises ValueError where the task's ground truth is no programming problem."""
        self._problem = Problem.from_text(task.ground_truth)
        self._events: list[Event] = []
        self._verdict = Verdict(0.0, False)
        return Observation(task.prompt)

    def step(self, action: Action) -> StepResult:
        """Judges the message. Never raises on model output; what prevents a judgement is an infra_error."""
        solution, judgement = solution_of(action.text), Judgement()
        steps: tuple[StepVerdict, ...] = ()
        try:
            if solution is not None:
                judgement = judge(self._problem, solution.text, shared_sandbox())
                steps = self._steps(solution, judgement)
        except UnjudgedError as error:
            self._verdict = Verdict(None, None, infra_error=str(error))
            return StepResult((), infra_error=str(error))
        self._events = events_of(self._problem, solution, judgement)
        reward = judgement.share if self.reward_style == "share" else float(judgement.success)
        self._verdict = Verdict(reward, judgement.success, steps=steps)
        return StepResult((), reward, terminated=True, events=tuple(self._events))

    def _steps(self, solution: Solution, judgement: Judgement) -> tuple[StepVerdict, ...]:
        problem, looked = self._problem, dict[str, Any]()
        if not judgement.success and (judgement.stopped is None or judgement.stopped.kind == "exception"):
            texts = texts_of(problem, solution=solution.text)
            looked = told_by(shared_sandbox().call("env.code.static:look", texts, LIMITS))
        return step_verdicts(problem, solution, judgement, looked)

    def verdict(self) -> Verdict:
        """Grades the episode as it stands: reward, and verdicts on the solution's lines."""
        return self._verdict

    def feedback(self) -> Feedback | None:
        """Says how a failed solution failed; None after a success, an environment failure, or no message."""
        if not self._events or self._events[0].code == SOLVED:
            return None
        return rule_feedback(self._events, self.verbosity)

    def close(self) -> None:
        """Does nothing: the sandbox is the process's."""
