"""A question and one message: it is right or wrong as a whole, so no step has a verdict."""

from env.chat.neutral import one_line
from env.protocol import Action, EnvSpec, Observation, StepResult
from env.short.answers import AnswerKey, said_answer
from pipeline.types import Event, Feedback, Task, Verdict

MAX_SHOWN = 100
"""Characters of an answer that feedback repeats."""


class ShortAnswers:
    """One message answers; the key is hidden from policies, in feedback of every verbosity too."""

    spec = EnvSpec((), max_turns=1)

    def __init__(self, verbosity: str) -> None:
        self.verbosity = verbosity

    def reset(self, task: Task, seed: int) -> Observation:
        """Starts an episode; raises ValueError where the task's ground truth is no key."""
        self.key = AnswerKey.from_text(task.ground_truth)
        self.answer, self.is_right = "", False
        return Observation(task.prompt)

    def step(self, action: Action) -> StepResult:
        """Takes the answer, which ends the episode."""
        self.answer = said_answer(action.text)
        self.is_right = self.key.accepts(self.answer)
        code = "right_answer" if self.is_right else "wrong_answer" if self.answer else "no_answer"
        return StepResult((), float(self.is_right), terminated=True, events=(Event(code, 0),))

    def verdict(self) -> Verdict:
        """Returns 1 for a right answer and 0 for any other, without a word on steps."""
        return Verdict(float(self.is_right), self.is_right)

    def feedback(self) -> Feedback | None:
        """Returns that the answer is wrong, and, unless `binary`, which it was."""
        if self.is_right:
            return None
        if not self.answer:
            return Feedback("No answer was given.", f"rules/{self.verbosity}")
        which = "" if self.verbosity == "binary" else f' "{one_line(self.answer, MAX_SHOWN)}"'
        return Feedback(f"The answer{which} is wrong.", f"rules/{self.verbosity}")

    def close(self) -> None:
        """Holds nothing."""
