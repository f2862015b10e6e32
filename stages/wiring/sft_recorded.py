"""What sft imitates of recorded data: what is good, without attempts that feedback calls wrong."""

from collections import Counter
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from env.catalog import offer_of
from env.chat.style import ChatStyle
from env.corrections import Corrections, class_weights, corrections_in
from env.play.demonstrations import Demonstration, pieces_of, session_pieces
from env.play.guard import FailureError, graded, guarded, opened, stepped
from env.protocol import Action, Env
from env.sessions import Session, is_good, without_stop
from env.solutions import Solution, read_solutions
from pipeline.errors import ConfigError
from pipeline.rows import BadRowError
from pipeline.runner import Start
from stages.settings import Config
from stages.wiring.demonstrator import style_of
from stages.wiring.inputs import tasks_by_id
from stages.wiring.left_out import tell_left_out, tell_thoughts_lost


def recorded_demonstrations(start: Start[Config]) -> tuple[list[Demonstration], dict[str, Any]]:
    """Returns what is imitated of `sft.data`, and what the report says of it: rows, calls, what is left out.

    A solution is one message after its task's bare prompt, a session all of the agent's messages. Sessions
    count by how often they ask for feedback, `class_weights`. Raises ConfigError if nothing is left.
    """
    config, data = start.config, start.config.sft.data
    offer = offer_of(config.tasks.environment)
    assert data is not None  # whoever asks has some
    style = style_of(config.tasks.environment, config.prompt.style, config.prompt.thinking, config.sft.base)
    found, left_out = read_solutions(data, tasks_by_id(start).values(), others=True)
    make_env = partial(offer.make_env, config.tasks, config.prompt.verbosity)
    shown, used = list[Demonstration](), list[Solution]()
    num_calls, wrong = list[int](), 0
    with start.progress(len(found), "recorded demonstrations") as advance:
        for solution in found:
            start.stop_if_asked()
            advance(1)
            try:
                _refuse_low(solution.reward, data.above)  # before an environment is made for nothing
                corrections = corrections_in(solution.session) if solution.session else Corrections(0)
                with closing(guarded("make_env", make_env)) as env:
                    if solution.session is None:
                        one, reward = _of_solution(solution, style, env)
                    else:
                        one, reward = _of_session(solution, solution.session, style, env, corrections)
                _refuse_low(reward, data.above)
            except (BadRowError, FailureError) as error:
                left_out.append(solution.row.left_out(BadRowError(error.kind, str(error))))
                continue
            shown.append(one)
            num_calls.append(corrections.num_calls)
            wrong += len(corrections.wrong)
            used.append(solution)
    kinds, rows = tell_left_out(start, left_out), len(shown) + len(left_out)
    start.say(f"{len(shown)} recorded demonstrations, of {rows} rows")
    if not shown:
        raise ConfigError(
            f"none of {rows} rows of sft.data can be imitated ({kinds}). Next: others, or a lower "
            f"sft.data.above (now {data.above})"
        )
    weights = class_weights(num_calls)
    by_calls = {str(number): count for number, count in sorted(Counter(num_calls).items())}
    report = {
        "rows": rows,
        "by_calls": by_calls,
        "class_weights": {str(n): round(w, 4) for n, w in sorted(set(zip(num_calls, weights, strict=True)))},
        "wrong_attempts": wrong,
        "thoughts_lost": tell_thoughts_lost(start, used, style),
        "left_out": kinds,
    }
    return [replace(one, weight=w) for one, w in zip(shown, weights, strict=True)], report


def _refuse_low(reward: float | None, above: float | None) -> None:
    if above is not None and reward is not None and reward <= above:
        raise BadRowError("low_reward", f"{reward:g}; more than {above:g} is imitated (sft.data.above)")


def _of_solution(solution: Solution, style: ChatStyle, env: Env) -> tuple[Demonstration, float | None]:
    """Returns a message after its task's bare prompt, and what it earned."""
    text = without_stop(solution.text, style)
    opening, result = opened(env, solution.task, 0), stepped(env, style.parse(text))
    reward = graded(env).reward if solution.reward is None else solution.reward
    assert reward is not None  # what is graded has one
    pieces = pieces_of(style, opening.messages, (), [Action(text, "none")], [result], env.spec.tools)
    if len(pieces) > 2:
        raise BadRowError("goes_on", "the environment waits for more messages; allowed: one")
    return Demonstration("recorded", pieces, success=is_good(reward), guided=False), reward


def _of_session(
    solution: Solution, session: Session, style: ChatStyle, env: Env, corrections: Corrections
) -> tuple[Demonstration, float | None]:
    """Returns a session after its task's own prompt, or after its opening if nobody knows that; its reward.

    One that nobody has graded counts as a success: who gives demonstrations has chosen them.
    """
    opening, tools = session.opening, None
    if solution.task.data_source != "sessions":
        opening, tools = opened(env, solution.task, 0).messages, env.spec.tools
    pieces, unlearnt = session_pieces(style, session, opening, tools, corrections.wrong)
    success = solution.reward is None or is_good(solution.reward)
    shown = Demonstration("recorded", pieces, success=success, guided=False, unlearnt=unlearnt)
    return shown, solution.reward
