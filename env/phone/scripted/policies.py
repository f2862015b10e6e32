"""Scripted yardstick policies: what good, lazy, greedy and dishonest agents achieve.

Only the oracle reads `View.world`'s rules; the others know the directory once they have searched, what lines
told them, and the trade's habits (`prior_fields`, and which kind of line refers to which).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random

from env.phone.episode.compact import CompactStyle
from env.phone.episode.environment import PhoneEnv
from env.phone.episode.tools import CALL, FORM, FROM_FORM, SEARCH, WAIT
from env.phone.scripted.knowledge import Knowledge, View
from env.phone.solver.solver import optimal_move, tool_call
from env.phone.world.companies import Department
from env.phone.world.lexicon import COMMON_FIELDS, INDUSTRIES, PRIORS, REFERENCE
from env.phone.world.rules import ordered
from env.phone.world.world import Request
from env.protocol import Action, StepResult, ToolCall
from pipeline.types import Task, Verdict

Policy = Callable[[View], ToolCall | None]
"""From what an agent may know to its next call; None stops."""


def _search(view: View) -> ToolCall:
    return ToolCall(SEARCH, {"company_name": view.world.company.name})


def _form(view: View, fields: Sequence[str]) -> ToolCall:
    return ToolCall(FORM, {"fields": list(dict.fromkeys(fields))[: view.level.max_form_fields]})


def _call(
    view: View, line: Department, request: Request, given: Sequence[str] = (), offered: Sequence[str] = ()
) -> ToolCall:
    refused = view.known.refused | view.taught.refused
    values = {name: view.world.profile[name] for name in refused & view.known.doubtful}
    auth_info: dict[str, str | bool | None] = {name: values.get(name, FROM_FORM) for name in given}
    auth_info |= dict.fromkeys(offered)
    arguments = {"phone_number": line.phone, "request": request.request_id, "auth_info": auth_info}
    return ToolCall(CALL, arguments)


def _lines(view: View, knows_trade: bool) -> dict[str, tuple[Department, Request]]:
    """Returns the lines to be called, each with a request that leads there."""
    return {
        line.phone: (line, request)
        for request in reversed(view.requests)
        for line in reversed(view.route(request, knows_trade))
    }


def _deliver(view: View, knows_trade: bool) -> ToolCall | None:
    """Calls line after line with all that the form gave; stops once something is refused for good."""
    known = view.known
    if "on_hold" in view.last_codes:
        return ToolCall(WAIT, {})
    if not view.level.has_wait and view.last_codes and "form" not in view.last_codes:
        return None  # one call decides: nothing more can be had
    if "auth_mismatch" in view.last_codes and not known.refused & known.doubtful:
        return None
    if {"locked", "fabricated_auth"} & view.last_codes:
        return None
    outcome = view.env.outcome
    if outcome is not None and outcome.status == "auth_missing" and not outcome.sent.is_probe:
        key = (outcome.request_id, outcome.phone)
        if key not in known.before or key in view.state.referred:
            return None
    for request in view.requests:
        route = view.route(request, knows_trade)
        referred = [(request.request_id, line.phone) in view.state.referred for line in route]
        line = next((x for x, is_done in zip(route[:-1], referred, strict=False) if not is_done), route[-1])
        if known.opens.get(line.phone, 0) > view.state.tick + 1:
            continue
        given = ordered(view.state.form or frozenset())
        if any(referred) and line.wants_reference:
            given = (*given, REFERENCE)
        return _call(view, line, request, given)
    return ToolCall(WAIT, {})


def oracle(view: View) -> ToolCall | None:
    """Knows the rules: search, the right form, then the calls of a shortest plan."""
    if not view.searched:
        return _search(view)
    move = optimal_move(view.world, view.env.state)
    return None if move is None else tool_call(view.world, move)


def _asks_on(view: View, line: Department, guess: Sequence[str]) -> tuple[str, ...] | None:
    """Returns what to offer a line next, or None when it has said all that is worth its price.

    An agent counts strikes: it leaves itself one before a lockout, and for a whole company two.
    """
    told = view.known.of(line)
    level = view.level
    if told.kind:
        if told.kind != "first" or told.enough is not None or told.asked > len(PRIORS[line.kind]):
            return None
    elif (earlier := view.from_earlier(line)) is not None and earlier[1]:
        return None
    if level.probe_is_strike and level.strikes_to_lock is not None:
        strikes, spare = told.strikes, 1
        if level.locks_company:
            strikes, spare = sum(heard.strikes for heard in view.known.lines.values()), 2
        if strikes >= level.strikes_to_lock - spare:
            return None
    calls = sum(len(view.world.path(request)) for request in view.world.requests)
    if view.state.tick + 2 + calls >= level.max_turns:
        return None
    return tuple(dict.fromkeys((*guess, *ordered(told.missing))))


def _wants(view: View, line: Department, guess: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Returns the fields to ask for on behalf of a line, and whether they surely suffice."""
    told = view.known.of(line)
    if told.enough is not None or told.kind == "all":
        return ordered(told.missing if told.enough is None else told.enough), True
    earlier, is_sure = view.from_earlier(line) or (tuple(guess), False)
    return (*ordered(told.missing), *earlier), is_sure


def _with_form(view: View, fields: Sequence[str], knows_trade: bool) -> ToolCall | None:
    """Searches, asks for these fields in the one form, as far as they go, and delivers."""
    if not view.searched:
        return _search(view)
    return _deliver(view, knows_trade) if view.state.form is not None else _form(view, fields)


def _careful(view: View, knows_trade: bool) -> ToolCall | None:
    """Asks the lines before the one form, unless an earlier attempt already taught their wants."""
    if not view.searched or view.state.form is not None:
        return _with_form(view, (), knows_trade)
    if "on_hold" in view.last_codes:
        return ToolCall(WAIT, {})
    lines = _lines(view, knows_trade)
    for line, request in lines.values():
        offered = _asks_on(view, line, view.guess(line) if knows_trade else ())
        if offered is not None and view.known.opens.get(line.phone, 0) <= view.state.tick + 1:
            return _call(view, line, request, offered=offered)
    return _form(view, _union(view, [line for line, _ in lines.values()], knows_trade))


def _union(view: View, lines: Sequence[Department], knows_trade: bool) -> tuple[str, ...]:
    """Returns the form for all lines: what each wants, then what else would do, as far as it goes."""
    wanted: list[str] = []
    spare: list[str] = []
    for line in lines:
        fields, is_sure = _wants(view, line, view.guess(line) if knows_trade else ())
        wanted += fields
        for told in (view.known.of(line), view.taught.of(line)):
            spare += [name for other in told.others for name in ordered(other)]
        if knows_trade and not is_sure and view.level.has_wait:
            spare += INDUSTRIES[view.world.company.industry].values()
    return tuple(name for name in (*wanted, *spare) if name not in view.taught.lacking) or COMMON_FIELDS[:1]


def prior_only(view: View) -> ToolCall | None:
    """Trusts the trade's habits and never asks; on a later try it heeds what it was told."""
    fields = [
        name
        for line, _ in _lines(view, knows_trade=True).values()
        for name in (view.from_earlier(line) or (view.guess(line), False))[0]
    ]
    return _with_form(view, fields, knows_trade=True)


def informed_over_collector(view: View) -> ToolCall | None:
    """Asks for all of the industry's slots, as far as the form takes them."""
    return _with_form(view, tuple(INDUSTRIES[view.world.company.industry].values()), knows_trade=True)


def fabricator(view: View) -> ToolCall | None:
    """Makes values up instead of asking the customer."""
    if not view.searched:
        return _search(view)
    if "on_hold" in view.last_codes:
        return ToolCall(WAIT, {})
    request = view.world.requests[0]
    line = view.world.path(request)[0]
    call = _call(view, line, request)
    call.arguments["auth_info"] = {name: f"{view.rng.randrange(10_000):04d}" for name in view.guess(line)}
    return call


def random(view: View) -> ToolCall | None:
    """Does anything at all that is a valid call; stops now and then."""
    return None if view.rng.random() < 0.1 else _random_act(view)


def _random_act(view: View) -> ToolCall:
    """Returns a random valid call."""
    rng = view.rng
    kind = rng.choice((SEARCH, FORM, CALL, CALL, *([WAIT] if view.level.has_wait else [])))
    if kind == WAIT:
        return ToolCall(WAIT, {})
    if kind == SEARCH:
        return _search(view)
    if kind == FORM:
        number = rng.randint(1, view.level.max_form_fields)
        return _form(view, rng.sample(view.world.company.vocabulary, number))
    have = ordered(view.state.form or frozenset())
    given = rng.sample(have, rng.randint(0, len(have)))
    line = rng.choice(view.world.company.departments)
    requests = view.world.requests
    request = rng.choice(requests) if len(requests) > 1 else requests[0]
    return _call(view, line, request, given)


def noisy_adaptive(view: View) -> ToolCall | None:
    """Acts like `adaptive`, but with probability `noise` a message is random."""
    return _random_act(view) if view.rng.random() < view.noise else _careful(view, knows_trade=True)


POLICIES: Mapping[str, Policy] = {
    "oracle": oracle,
    "adaptive": partial(_careful, knows_trade=True),  # offers what the prior predicts, then what lines named
    "prober": partial(_careful, knows_trade=False),  # asks each line with an empty call first
    "prior_only": prior_only,
    "over_collector": partial(_with_form, fields=COMMON_FIELDS, knows_trade=False),  # what everybody asks for
    "informed_over_collector": informed_over_collector,
    "random": random,
    "fabricator": fabricator,
    "noisy_adaptive": noisy_adaptive,
}


def play_scripted(
    task: Task,
    policy: str,
    seed: int,
    noise: float = 0.0,
    earlier: Sequence[Sequence[Action]] = (),
    env: PhoneEnv | None = None,
) -> tuple[list[Action], list[StepResult], Verdict]:
    """Returns one episode of a scripted policy: its messages, their results, the verdict.

    `noise` is the share of random acts of noisy policies. The policy knows what `earlier` attempts taught.
    `env`, a new one by default, is left as the episode ended. Raises ValueError for an unknown name.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy {policy!r}; known: {', '.join(POLICIES)}")
    env = env or PhoneEnv()
    taught = Knowledge()
    for actions in earlier:
        env.reset(task, seed)
        for action in actions:
            taught.read(env.world, env.step(action).events, env.outcome)
    env.reset(task, seed)
    view = View(env, Random(f"{task.task_id}:{seed}:policy:0"), noise, taught)
    style = CompactStyle()
    played: list[Action] = []
    results: list[StepResult] = []
    while not env.is_over:
        played.append(style.action_of(POLICIES[policy](view)))
        results.append(env.step(played[-1]))
        view.known.read(env.world, results[-1].events, env.outcome)
    return played, results, env.verdict()
