"""Programming problems of rows that people have: HumanEval's, MBPP's, and others with tests that assert.

A row with `test` is a program that defines `check(candidate)` or asserts by name; a row with `test_list`
has its assertions one by one. Of those the first is shown: only tests say there what the function is called.
"""

import ast
import doctest
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from env.code.judge import UnjudgedError, judge
from env.code.problems import Example, Problem
from env.code.tasks import ENDING, prompt_of
from env.code.values import encode
from env.sandbox import shared_sandbox
from env.sources import Problem as RowProblem
from env.sources import messages_of
from pipeline.errors import ConfigError
from pipeline.rows import BadRowError, Field, shown

FIELDS = {
    "prompt": Field(("prompt", "text", "question")),
    "tests": Field(("test", "test_list", "tests", "reward_model.ground_truth")),
    "entry_point": Field(("entry_point", "extra_info.entry_point"), required=False),
    "reference": Field(("canonical_solution", "code", "solution"), required=False),
    "setup": Field(("test_setup_code", "test_imports"), required=False),
}
COMPLETE = "Complete the Python function `{name}`."
MAX_SHOWN = 3
_GIVES = re.compile(r"\)\s*(?:# ?)?(?:==>?|➞|=>|->|=|returns?|should return|should be)\s*:?\s*")
"""What stands between a call and its result in the text of a function."""


def problem_of(values: Mapping[str, Any]) -> RowProblem:
    """Returns what a row says to a policy, and what grades a solution.

    Raises BadRowError for a row without usable tests, or whose own solution does not pass them.
    """
    own = messages_of(values, "prompt")
    statement, program = own[-1]["content"], _text(values, "tests")
    if not program.strip():
        raise BadRowError("no_tests", "it has no tests")
    setup, reference = _text(values, "setup"), _text(values, "reference")
    name = _text(values, "entry_point") or _called(program, reference)
    defined = _definition(statement, name)
    try:
        if defined is None:
            # Messages say what they say: a test that is not among them is hidden.
            is_ours = isinstance(values["prompt"], str) and isinstance(values["tests"], list)
            asserts = values["tests"] if is_ours else []
            public = tuple(filter(None, [_example(test, name) for test in asserts[:1]]))
            hidden = "\n".join(asserts[1:]) if public else program
            problem = Problem(name, public, program=hidden, given=setup, reference=reference)
        else:
            given = "\n".join(statement.split("\n")[: defined.lineno - 1])
            public = _shown_examples(ast.get_docstring(defined) or "", name) if reference else ()
            whole = reference if _definition(reference, name) else statement + reference
            problem = Problem(name, public, program=program, given=given, reference=reference and whole)
    except ValueError as error:
        raise BadRowError("no_problem", str(error)) from None
    problem = _checked(problem)
    if isinstance(values["prompt"], list):  # whoever wrote messages has said it all
        return RowProblem(own, problem.to_text(), "code")
    if defined is None:
        said = prompt_of(name, statement, "", problem.public)
    else:
        said = "\n\n".join([COMPLETE.format(name=name), f"```python\n{statement.rstrip()}\n```", ENDING])
    return RowProblem(({"role": "user", "content": said},), problem.to_text(), "code", asked=statement)


def _checked(problem: Problem) -> Problem:
    """Returns the problem without examples that its own solution contradicts."""
    if not problem.reference:
        return problem
    try:
        judgement = judge(problem, problem.reference, shared_sandbox())
    except UnjudgedError as error:
        if str(error).endswith("_unavailable"):
            raise ConfigError("tasks.rows: the sandbox cannot run the rows' own solutions") from None
        raise BadRowError("tests_fail", f"its tests cannot be played: {error}") from None
    if judgement.stopped or not judgement.hidden or not all(result.passed for result in judgement.hidden):
        raise BadRowError("reference_fails", "its own solution does not pass its tests")
    pairs = zip(problem.public, judgement.public, strict=True)
    return replace(problem, public=tuple(example for example, result in pairs if result.passed))


def _called(program: str, reference: str) -> str:
    """Returns the function of a solution that the tests call."""
    try:
        defined = [node.name for node in ast.parse(reference).body if isinstance(node, ast.FunctionDef)]
        nodes = ast.walk(ast.parse(program))
    except (SyntaxError, ValueError) as error:
        raise BadRowError("bad_tests", f"its tests or its solution are no Python: {error}") from None
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    called = [function.id for function in calls if isinstance(function, ast.Name)]
    for name in called:
        if name in defined:
            return name
    raise BadRowError("no_entry_point", f"no entry_point, and its tests call {shown(called)}")


def _definition(text: str, name: str) -> ast.FunctionDef | None:
    """Returns a module's definition of a function, None if it has none, or is no Python."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return None
    return next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == name), None)


def _shown_examples(text: str, name: str) -> tuple[Example, ...]:
    """Returns the examples of a function's text: doctests, else lines such as `f(2) == 4` or `f(2) -> 4`."""
    try:
        pairs = [(test.source, test.want) for test in doctest.DocTestParser().get_examples(text)]
    except ValueError:
        pairs = []
    for call in re.findall(rf"\b{name}\(.*", text) if not pairs else ():
        pairs += [(call[: gap.start() + 1], call[gap.end() :]) for gap in _GIVES.finditer(call)]
    examples = [_example(f"assert {call.strip()} == {result.strip()}", name) for call, result in pairs]
    return tuple(filter(None, examples))[:MAX_SHOWN]


def _example(text: str, name: str) -> Example | None:
    """Returns `assert name(arguments) == expected` as data; None for anything else."""
    try:
        match ast.parse(text).body:
            case [
                ast.Assert(
                    test=ast.Compare(
                        left=ast.Call(func=ast.Name(id=called), args=arguments, keywords=[]),
                        ops=[ast.Eq()],
                        comparators=[expected],
                    )
                )
            ] if called == name:
                values = [ast.literal_eval(argument) for argument in arguments]
                return Example(encode(values), encode(ast.literal_eval(expected)), "approx")
    except (SyntaxError, ValueError, TypeError):
        pass
    return None


def _text(values: Mapping[str, Any], name: str) -> str:
    """Returns a field as text, a list of texts as lines, nothing as no text; else raises BadRowError."""
    value = values[name] or ""
    lines = value if isinstance(value, list) else [value]
    if not all(isinstance(line, str) for line in lines):
        raise BadRowError(f"bad_{name}", f"{name} is {shown(value)}; allowed: a text or a list of texts")
    return "\n".join(lines)
