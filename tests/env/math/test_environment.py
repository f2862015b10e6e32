"""The math environment as the player sees it: rewards, events, feedback, others' failures."""

import pickle
from dataclasses import replace
from typing import Any

import pytest

from env.math import environment
from env.math.environment import MathEnv
from env.math.offer import MATH
from env.math.worked import Worked
from env.play.demonstrations import demonstrate
from env.protocol import Action, replay
from env.sandbox import Outcome
from pipeline.errors import ArtifactError, ConfigError
from pipeline.types import Task, Verdict

QUESTION = "Ada has 48 clips, sells half of them and then 10 more. How many has she sold?"
SOLUTION = ("48 / 2 = <<0>>", "<<0>> + 10 = <<1>>", "\\boxed{<<1>>}")
WORKED = Worked(SOLUTION, ("48 / 2", "<<0>> + 10"))


def task(gold: str = "34", question: str = QUESTION, **details: Any) -> Task:
    said = ({"role": "user", "content": question},)
    return Task("t", "math", "train", 1, said, "rule", gold, "math", "t", 0, WORKED.as_details() | details)


def played(text: str, verbosity: str = "observed", of: Task | None = None) -> MathEnv:
    env = MATH.make_env(MATH.settings(), verbosity)
    assert isinstance(env, MathEnv)
    env.reset(of or task(), 0)
    env.step(Action(text, "none"))
    return env


RIGHT = "48 / 2 = 24\n24 + 10 = 34\n\\boxed{34}"
SLIPPED = "48 / 2 = 25\n25 + 10 = 35\n\\boxed{35}"
LAST = "48 / 2 = 24\n24 + 10 = 35\n\\boxed{35}"


def test_the_answer_is_the_reward_and_lines_are_the_steps() -> None:
    for text, reward, statuses in (
        (RIGHT, 1.0, ["ok", "ok", "unknown"]),
        (SLIPPED, 0.0, ["wrong", "ok", "unknown"]),
        (LAST, 0.0, ["ok", "wrong", "unknown"]),
        ("34", 0.0, ["unknown"]),
        ("", 0.0, []),
    ):
        env = MathEnv()
        env.reset(task(), 0)
        assert env.verdict().steps == ()
        result = env.step(Action(text, "none"))
        assert (result.reward, result.terminated, result.messages) == (reward, True, ())
        assert env.verdict().reward == reward
        assert [step.status for step in env.verdict().steps] == statuses


def test_what_a_parser_makes_of_a_message_changes_nothing() -> None:
    for status in ("ok", "malformed_json", "bad_args"):
        env = MathEnv()
        env.reset(task(), 0)
        assert env.step(Action(RIGHT, status)).reward == 1.0


def test_events_tell_the_errors_and_why_the_answer_is_not_right() -> None:
    env = MathEnv()
    env.reset(task(), 0)
    events = env.step(Action(SLIPPED, "none")).events
    assert [(event.code, event.target) for event in events] == [("false_equality", "line 1"), ("unequal", "")]
    assert env.step(Action("no", "none")).events[-1].code == "no_answer"
    assert env.step(Action(RIGHT, "none")).events[-1].code == "solved"


def test_gsm8k_s_mark_counts_only_where_a_task_declares_it() -> None:
    assert not played("#### 34").verdict().success
    assert played("#### 34", of=task(mark="####")).verdict().success
    for question, place in ((QUESTION, 'behind "####"'), (f"{QUESTION} In \\boxed{{}}.", "in \\boxed{}")):
        feedback = played("34", of=task(question=question, mark="####")).feedback()
        assert feedback is not None
        assert feedback.text == f"There is no answer {place}."


@pytest.mark.parametrize(
    ("text", "verbosity", "said"),
    [
        (SLIPPED, "binary", "Not solved."),
        (SLIPPED, "observed", "Line 1 is the first wrong one: 48 / 2 = 25 is false."),
        (SLIPPED, "corrective", "Line 1 is the first wrong one: 48 / 2 = 25 is false. It is 24."),
        (LAST, "corrective", "Line 2 is the first wrong one: 24 + 10 = 35 is false."),  # 34 is the answer
        (
            "9^3900*9^1000 = 5\n\\boxed{7}",
            "corrective",
            "Line 1 is the first wrong one: 9^3900*9^1000 = 5 is false.",
        ),
        ("34", "corrective", "There is no answer in \\boxed{}."),
        ("\\boxed{35}", "corrective", "The answer is wrong, though no line that could be checked is false."),
        ("\\boxed{30 + 4}", "observed", "The answer is no result in the form that is asked for."),
        (
            "48 / 2 = 24\n24 + 11 = 35\n\\boxed{35}",
            "observed",
            "The answer is wrong, though no line that could be checked is false. "
            "Line 2: 24 + 11 = 35 uses a number that nothing before it gives.",
        ),
    ],
)
def test_feedback_locates_the_first_error_and_never_tells_the_answer(
    text: str, verbosity: str, said: str
) -> None:
    feedback = played(text, verbosity).feedback()
    assert feedback is not None
    assert (feedback.text, feedback.source) == (said, f"rules/{verbosity}")
    assert feedback.privileged == said.endswith("It is 24.")


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("25\\%", "1 * 100 / 4 = 24"),
        ("\\$0.5", "1 / 2 = 3"),
        ("\\frac{1}{2}", "1 / 2 = 3"),
        ("0.50", "2 / 4 = 3"),
        ("1/4", "100 / 4 = 24"),  # its per cents
        ("2 hours", "100 + 20 = 24"),  # its minutes
        ("25, 30", "50 / 2 = 24"),  # a part of it
        ("25\\sqrt{2}", "50 / 2 = 24"),
    ],
)
def test_no_notation_of_the_answer_is_told(gold: str, text: str) -> None:
    feedback = played(f"{text}\n\\boxed{{3}}", "corrective", task(gold, "")).feedback()
    assert feedback is not None
    assert "It is" not in feedback.text


def test_a_right_solution_has_no_feedback() -> None:
    assert played(RIGHT).feedback() is None


def test_unknown_verbosity_is_refused() -> None:
    with pytest.raises(ValueError, match="verbosity 'loud'; known: binary, observed, corrective"):
        played(SLIPPED, "loud").feedback()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("unavailable", "sandbox_unavailable"),
        ("timeout", "verifier_timeout"),
        ("crashed", "verifier_crashed"),
    ],
)
def test_a_verifier_that_fails_is_no_reward_of_zero(
    monkeypatch: pytest.MonkeyPatch, status: Any, kind: str
) -> None:
    class Failing:
        def call(self, *_: object) -> Outcome:
            return Outcome(status)

    monkeypatch.setattr(environment, "shared_sandbox", Failing)
    env = MathEnv()
    env.reset(task("\\sqrt{2}"), 0)
    result = env.step(Action("\\boxed{\\sqrt{8}/2}", "none"))
    assert (result.infra_error, env.verdict(), env.feedback()) == (
        kind,
        Verdict(None, None, infra_error=kind),
        None,
    )
    env.reset(task("34"), 0)
    assert env.step(Action(RIGHT, "none")).reward == 1.0  # numbers need no sandbox


def test_formulas_are_compared_in_the_sandbox() -> None:
    assert played("\\boxed{\\sqrt{8}/2}", of=task("\\sqrt{2}")).verdict().success
    assert not played("\\boxed{\\sqrt{8}/3}", of=task("\\sqrt{2}")).verdict().success


def test_replay_is_the_snapshot_and_an_environment_can_be_pickled() -> None:
    env = pickle.loads(pickle.dumps(MathEnv()))
    first = replay(env, task(), 1, [Action(SLIPPED, "none")])
    verdict = env.verdict()
    assert replay(MathEnv(), task(), 2, [Action(SLIPPED, "none")]) == first
    assert pickle.loads(pickle.dumps(env)).verdict() == verdict


def test_a_task_without_an_answer_is_refused_before_it_is_played() -> None:
    with pytest.raises(ArtifactError, match="cannot be graded: its ground_truth is empty"):
        MATH.check_gradable([task(" ")])
    with pytest.raises(ArtifactError, match="has 401 characters; answers of at most 400 are compared"):
        MATH.check_gradable([task("1" * 401)])


def test_a_demonstration_after_feedback_quotes_what_went_wrong_and_solves_the_task() -> None:
    made = demonstrate(
        MATH.demonstrators,
        MATH.env,
        task(),
        style=MATH.style("plain"),
        shares={"careless": 1.0},
        guided_share=1.0,
        noise=0.0,
        seed=3,
        follows_feedback=1.0,
        thoughts=False,
    )
    prompt = made.pieces[0][0]
    assert made.guided
    assert "is the first wrong one" in prompt
    assert "34" not in prompt.partition("=>")[2]
    assert made.pieces[1][0].removesuffix(MATH.style("plain").stop_token) == RIGHT
    assert made.success


def test_a_task_without_a_solution_cannot_be_demonstrated() -> None:
    with pytest.raises(ConfigError, match=r"has no worked solution.*Next: sft.data=FILE"):
        MATH.demonstrators.play(replace(task(), details={}), "careful", 0, 0.0, (), None, False)


@pytest.mark.parametrize("style", ["plain", "full"])
def test_both_styles_ask_and_read_the_same(style: str) -> None:
    made = MATH.style(style)
    prompt = made.render_prompt(task().prompt)
    assert QUESTION in prompt
    assert "<tools>" not in prompt
    assert played(made.parse(RIGHT + made.stop_token).text).verdict().success
