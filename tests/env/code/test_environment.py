"""One message, one judgement: verdicts on lines, feedback without hidden tests, failures of our own."""

import pickle
import re
from itertools import accumulate
from typing import Any

import pytest

from env.code import offer
from env.code.environment import CodeEnv
from env.code.offer import CODE
from env.code.problems import Example, Problem, own_problems
from env.code.scripted import message_of, solutions
from env.code.tasks import own_tasks
from env.play.steps import graded_steps, message_steps
from env.protocol import Action, StepResult
from env.splitters import SPLITTERS
from pipeline.errors import ConfigError
from pipeline.types import StepVerdict, Task, Verdict

pytestmark = pytest.mark.usefixtures("sandbox")
SECRET = "hidden words"
PROBLEM = Problem("size", (Example(["ab"], 2), Example(["c"], 1)), (Example([SECRET], 12), Example([""], 0)))


def task_of(problem: Problem) -> Task:
    said = ({"role": "user", "content": "write size"},)
    return Task("t", "code", "train", 1, said, "rule", problem.to_text(), "code", "c", 0)


def played(
    message: str, problem: Problem = PROBLEM, verbosity: Any = "observed", reward: Any = "all"
) -> tuple[CodeEnv, StepResult]:
    env = CodeEnv(verbosity, reward)
    env.reset(task_of(problem), 0)
    return env, env.step(Action(message, "none"))


def block(code: str) -> str:
    return f"It is easy:\n```python\n{code}\n```\nDone."


RIGHT = "def size(text):\n    # count\n\n    return len(text)"


def lines_said(message: str, steps: tuple[StepVerdict, ...]) -> list[tuple[str, str]]:
    return [(step.status, message[step.char_start : step.char_end].strip()) for step in steps]


def test_a_right_solution_is_a_success_and_its_lines_are_ok() -> None:
    env, result = played(message := block(RIGHT))
    assert (result.reward, result.terminated, result.infra_error) == (1.0, True, None)
    verdict = env.verdict()
    assert (verdict.reward, verdict.success) == (1.0, True)
    assert lines_said(message, verdict.steps) == [("ok", "def size(text):"), ("ok", "return len(text)")]
    assert env.feedback() is None
    assert [event.code for event in result.events] == ["solved"]


WRONG = {
    "syntax": ("def size(text)\n    return len(text)", "def size(text)", "syntax"),
    "exception": ("def size(text):\n    n = len(txt)\n    return n", "n = len(txt)", "exception"),
    "deep": (
        "def part(t):\n    return t[99]\n\ndef size(text):\n    x = part(text)\n    return 1",
        "return t[99]",
        "exception",
    ),
    "on the way only": (
        "def size(text):\n    if text == 'zz':\n        return other(text)\n    return 3",
        "return other(text)",
        "undefined_name",
    ),
    "type": ("def size(text):\n    return str(len(text))", "return str(len(text))", "type"),
    "generator": ("def size(text):\n    yield len(text)", "def size(text):", "type"),
    "nothing": ("def size(text):\n    len(text)", "def size(text):", "type"),
}


@pytest.mark.parametrize(("code", "line", "kind"), WRONG.values(), ids=WRONG)
def test_an_error_is_located_at_its_line(code: str, line: str, kind: str) -> None:
    env, result = played(message := block(code))
    assert result.reward == 0.0
    wrong = [step for step in env.verdict().steps if step.status == "wrong"]
    assert [(step.code, message[step.char_start : step.char_end].strip()) for step in wrong] == [(kind, line)]


@pytest.mark.parametrize("line_break", ["\r", "\r\n"])
def test_lines_are_those_that_the_compiler_counts(line_break: str) -> None:
    code = ["def size(text):", "    if text == 'zz':", "        return other(text)", "    return 3"]
    env, _ = played(message := block(line_break.join(code)))
    wrong = [said for said in lines_said(message, env.verdict().steps) if said[0] == "wrong"]
    assert wrong == [("wrong", "return other(text)")]


def test_a_return_is_not_blamed_for_the_end_of_the_function() -> None:
    env, _ = played(message := block("def size(text):\n    if text == 'zz':\n        return 2"))
    assert lines_said(message, env.verdict().steps) == [("unknown", "return 2")]


def test_a_wrong_value_blames_no_line() -> None:
    env, _ = played(message := block("def size(text):\n    if not text:\n        return 0\n    return 1"))
    assert lines_said(message, env.verdict().steps) == [("unknown", "return 0"), ("unknown", "return 1")]
    assert {step.message for step in env.verdict().steps} == {"2 of 4 tests fail"}
    assert {step.code for step in env.verdict().steps} == {""}


@pytest.mark.parametrize("splitter", ["message", "lines", "blocks"])
def test_a_verdict_is_of_the_step_that_holds_its_line(splitter: str) -> None:
    code = "import math\n\ndef size(text):\n    n = len(txt)\n    return n"
    env, _ = played(message := block(code))
    borders = SPLITTERS[splitter](message)
    steps = message_steps(
        message, borders, range(len(message)), message_index=0, first_index=0, response_start=0, begun=0
    )
    graded = graded_steps(steps, env.verdict().steps)
    [wrong] = [step for step in graded if step.verifier_status == "wrong"]
    assert "n = len(txt)" in wrong.text
    assert (wrong.verifier_code, wrong.verifier_message) == ("exception", "line 4 raises NameError")


@pytest.mark.parametrize("begun", [0, 6])
def test_an_indented_line_has_its_verdict_though_the_token_before_it_holds_its_indentation(
    begun: int,
) -> None:
    r"""Byte-level tokenizers say "\n    " in one token, with which the line before ends."""
    env, _ = played(message := block("def size(text):\n    n = len(txt)\n    return n"))
    pieces = re.findall(r"\n[ ]*|[^\n]+", message)
    assert pieces[5:7] == ["\n    ", "n = len(txt)"]
    starts = list(accumulate(map(len, pieces), initial=0))[:-1]
    borders = SPLITTERS["lines"](message)
    steps = message_steps(
        message, borders, starts, message_index=0, first_index=0, response_start=0, begun=begun
    )
    [wrong] = [s for s in graded_steps(steps, env.verdict().steps) if s.verifier_status == "wrong"]
    assert wrong.text == "n = len(txt)\n    "


def test_the_share_of_tests_passed_is_the_reward_if_asked_for() -> None:
    code = "def size(text):\n    return 2 if len(text) > 1 else len(text)"
    env, result = played(block(code), reward="share")
    assert result.reward == env.verdict().reward == 0.75
    assert env.verdict().success is False
    assert played(block(code))[1].reward == 0.0


@pytest.mark.parametrize("message", ["", "no code", "def size(t): return len(t)", f"<think>{block(RIGHT)}"])
def test_a_message_without_a_block_is_no_answer(message: str) -> None:
    env, result = played(message)
    assert (result.reward, [event.code for event in result.events]) == (0.0, ["no_answer"])
    assert env.verdict() == Verdict(0.0, False)
    feedback = env.feedback()
    assert feedback is not None
    assert "no block of code" in feedback.text


def test_the_last_block_counts_and_thoughts_do_not() -> None:
    wrong = block("def size(text):\n    return 0")
    assert played(f"{wrong}\n{block(RIGHT)}")[1].reward == 1.0
    assert played(f"{block(RIGHT)}\n{wrong}")[1].reward == 0.0
    assert played(f"<think>{wrong}</think>\n{block(RIGHT)}")[1].reward == 1.0
    assert played(f"<think>{block(RIGHT)}</think>\nDone.")[1].reward == 0.0
    assert played(f"```\n{RIGHT}")[1].reward == 1.0  # a block that is not closed ends with the message


def test_before_its_message_an_episode_is_worth_nothing() -> None:
    env = CodeEnv()
    env.reset(task_of(PROBLEM), 0)
    assert env.verdict() == Verdict(0.0, False)
    assert env.feedback() is None


TOLD = {
    "syntax": "The code does not compile: expected ':' in line 1, `def size(text)`.",
    "exception": (
        "`size('ab')` raises NameError: name 'txt' is not defined in line 2, `n = len(txt)`, expected 2."
    ),
    "type": "`size('ab')` returns '2', expected 2.",
}


@pytest.mark.parametrize("name", TOLD)
def test_feedback_tells_of_the_first_public_test_that_fails(name: str) -> None:
    def told(verbosity: str) -> str:
        feedback = played(block(WRONG[name][0]), verbosity=verbosity)[0].feedback()
        assert feedback is not None
        assert (feedback.source, feedback.privileged) == (f"rules/{verbosity}", False)
        return feedback.text

    assert TOLD[name] in told("observed")
    assert TOLD[name] in told("corrective")
    assert "line" not in told("binary")
    assert ("'c'" in told("corrective")) == (name != "syntax")  # the other public test
    assert "'c'" not in told("observed")


LEAKS = {
    "wrong value": "def size(text):\n    return len(text) if len(text) < 3 else 7",
    "exception with words": """def size(text):
    if len(text) > 2: raise ValueError(text)
    return len(text)""",
    "exception by name": """
def size(text):
    if len(text) > 2: raise type(text, (Exception,), {})(text)
    return len(text)""",
    "saves it for later": """
seen = []
def size(text):
    seen.append(text)
    if seen == ['']: raise KeyError(seen)
    return len(text) if len(text) < 3 else seen""",
    "forges an error of the compiler": """
import sys
def size(text):
    forged = {"error": "syntax", "name": "", "words": text, "line": 2}
    if len(text) > 2: sys.modules['__main__'].deliver(forged)
    return len(text)""",
    "looks for it": """
import gc
def size(text):
    return [item for item in gc.get_objects() if 'hidden' in repr(item)[:1000]]""",
}


@pytest.mark.parametrize("verbosity", ["binary", "observed", "corrective"])
@pytest.mark.parametrize("code", LEAKS.values(), ids=LEAKS)
def test_nothing_tells_of_a_hidden_test(code: str, verbosity: str) -> None:
    env, result = played(block(code), verbosity=verbosity)
    feedback = env.feedback()
    assert feedback is not None
    said = [feedback.text, *(event.detail for event in result.events)]
    said += [step.message for step in env.verdict().steps]
    assert not [text for text in said if SECRET in text]
    assert len(feedback.text) <= 600


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (LEAKS["exception with words"], "It raises an exception."),
        (LEAKS["wrong value"], "It returns a wrong result."),
        (
            "def size(text):\n    return len(text) if len(text) < 3 else object()",
            "It returns what is no plain data.",
        ),
    ],
)
def test_of_hidden_tests_only_the_kind_of_the_first_failure_is_told(code: str, told: str) -> None:
    feedback = played(block(code))[0].feedback()
    assert feedback is not None
    assert feedback.text == f"Not solved. It fails only tests that are not shown. {told}"


def test_a_solution_cannot_choose_what_it_hears_by_a_hidden_argument() -> None:
    code = """def size(text):
    if len(text) < 3: return len(text)
    if text[0] == 'a': raise LookupError(text)
    if text[0] == 'b':
        raise KeyError
    raise type(text, (Exception,), {})"""
    problems = [Problem("size", PROBLEM.public, (Example([text], 3),)) for text in ("abc", "bcd", "cde")]
    heard = {played(block(code), problem, verbosity="corrective")[0].feedback() for problem in problems}
    assert len(heard) == 1


FAILING = {
    "hangs": ("while True: pass", "verifier_timeout"),
    "crashes": ("import os; os._exit(1)", "verifier_crashed"),
    "is killed": ("import os; os.kill(os.getpid(), 9)", "verifier_crashed"),
    "never asks twice the same": ("import os\nassert size(os.urandom(4).hex()) == 8", "tests_not_repeatable"),
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("program", "kind"), FAILING.values(), ids=FAILING)
def test_a_verifier_that_fails_is_no_reward_and_the_next_one_works(program: str, kind: str) -> None:
    env, result = played(block(RIGHT), Problem("size", program=program))
    assert result.infra_error == kind
    assert env.verdict() == Verdict(None, None, infra_error=kind)
    assert env.feedback() is None
    assert played(block(RIGHT), Problem("size", program="assert size('abc') == 3"))[1].reward == 1.0


def test_a_machine_that_cannot_confine_is_told_before_anything_is_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise ConfigError("this machine cannot confine")

    tasks = own_tasks(CODE.settings(), 0)
    CODE.check_gradable(tasks)
    monkeypatch.setattr(offer, "shared_sandbox", refuse)
    with pytest.raises(ConfigError, match="cannot confine"):
        CODE.check_gradable(tasks)


def test_an_environment_replays_and_travels() -> None:
    [task, *_] = own_tasks(CODE.settings(), 0)
    problem = Problem.from_text(task.ground_truth)
    env = pickle.loads(pickle.dumps(CODE.env()))
    for solution in solutions(problem):
        env.reset(task, 0)
        first = (env.step(Action(message_of(solution), "none")), env.verdict(), env.feedback())
        env.reset(task, 1)
        assert (env.step(Action(message_of(solution), "none")), env.verdict(), env.feedback()) == first


def test_scripted_programmers_go_on_as_a_message_began() -> None:
    from random import Random

    from env.code.scripted import reply

    [task, *_] = own_tasks(CODE.settings(), 0)
    own = next(own for own in own_problems() if own.problem == Problem.from_text(task.ground_truth))
    messages = [message_of(solution) for solution in solutions(own.problem)]
    for name in CODE.styles:
        style = CODE.style(name, thinking=False)
        prompt = style.render_prompt(task.prompt)
        told = style.render_prompt(
            task.prompt, [style.attempt_line([Action("x", "none")], "Not solved. It fails.")]
        )
        assert {reply(prompt, Random(seed), style) for seed in range(99)} == set(messages)
        shares = [
            sum(reply(text, Random(seed), style) == messages[0] for seed in range(200)) / 200
            for text in (prompt, told)
        ]
        assert 0.3 < shares[0] < 0.5 < 0.7 < shares[1]
        for message in messages:
            for cut in range(0, len(message), 7):
                assert message[:cut] + reply(prompt + message[:cut], Random(cut), style) in messages
        assert reply(style.render_prompt(({"role": "user", "content": "hi"},)), Random(0), style)
