"""Calls of an environment: each gives what it may give, or is one failure, counted by kind, never a grade."""

from collections.abc import Callable, Sequence
from traceback import format_exception_only
from typing import TypeVar

from env.checks import feedback_problem, opening_problem, step_problem, verdict_problem
from env.protocol import Action, Env, Observation, StepResult
from pipeline.errors import ConfigError
from pipeline.types import Feedback, Task, Verdict

T = TypeVar("T")


class FailureError(Exception):
    """An episode cannot go on or be graded, not by the policy's fault: counted by kind, never a reward."""

    def __init__(self, kind: str, detail: str) -> None:
        # Kinds are counted, so a whole sentence goes to the event, not into the rollout's env_status.
        is_kind = kind.isidentifier() and kind != "ok"  # which says that nothing failed
        self.kind = kind if is_kind else "infra_error"
        self.detail = detail if is_kind else f"{detail}: {kind}"
        super().__init__(self.detail)


def guarded(name: str, call: Callable[[], T]) -> T:
    """Returns the call's result; what is raised inside an environment becomes a counted failure.

    A ConfigError is of the machine or the settings: all other episodes would fail of it, too. A grader that
    runs what a policy wrote may meet `exit()`, which ends an episode and no stage.
    """
    try:
        return call()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        words = " ".join("".join(format_exception_only(error)).split())[:200]
        storable = words.encode(errors="backslashreplace").decode()
        raise FailureError("infra_error", f"{name}: {storable}") from error


def opened(env: Env, task: Task, seed: int) -> Observation:
    """Returns what a policy sees first."""
    return _checked("bad_reply", "reset", lambda: env.reset(task, seed), opening_problem)


def stepped(env: Env, action: Action) -> StepResult:
    """Returns what a message led to; the environment may say in it that it failed."""
    return _checked("bad_reply", "step", lambda: env.step(action), step_problem)


def graded(env: Env) -> Verdict:
    """Returns a verdict with a reward."""
    tools = guarded("spec", lambda: env.spec.tools)
    verdict = _checked("bad_verdict", "verdict", env.verdict, lambda found: verdict_problem(found, tools))
    refuse_failure(verdict, "verdict")
    return verdict


def taught(env: Env) -> Feedback | None:
    """Returns what is said of a failed attempt."""
    return _checked("bad_feedback", "feedback", env.feedback, feedback_problem)


def played(
    env: Env, task: Task, seed: int, actions: Sequence[Action]
) -> tuple[Observation, list[StepResult]]:
    """Returns what an episode of these actions begins with, and what each of them led to."""
    opening, results = opened(env, task, seed), list[StepResult]()
    for action in actions:
        results.append(stepped(env, action))
        refuse_failure(results[-1], "step")
    return opening, results


def refuse_failure(said: StepResult | Verdict, name: str) -> None:
    """Raises FailureError if an environment says that it failed."""
    if said.infra_error is not None:
        raise FailureError(said.infra_error, name)


def _checked(code: str, name: str, call: Callable[[], T], problem_of: Callable[[T], str]) -> T:
    """Returns the call's result if it is what an environment may give; else a counted failure."""
    result = guarded(name, call)
    if problem := guarded(name, lambda: problem_of(result)):
        raise FailureError(code, f"{name}: {problem}")
    return result
