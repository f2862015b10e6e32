"""Scripted yardstick policies: what good, lazy, greedy and dishonest agents achieve.

Each is a function from a `View` (what an agent may know) to the next call, or None to stop. Only the
oracle reads `View.world`'s rules; the others know the directory once they have searched, what lines told
them, and the trade's habits (`prior_fields`, and which kind of line refers to which).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType

from env.phone.episode.compact import CompactStyle
from env.phone.episode.environment import PhoneEnv
from env.phone.episode.tools import CALL, FORM, FROM_FORM, SEARCH, WAIT
from env.phone.scripted.advised import read_advice
from env.phone.scripted.knowledge import Knowledge, LineKnowledge
from env.phone.solver.moves import tool_call
from env.phone.solver.solver import Advice, optimal_move
from env.phone.world.companies import Department
from env.phone.world.levels import Level
from env.phone.world.lexicon import COMMON_FIELDS, INDUSTRIES, PRIORS, REFERENCE
from env.phone.world.rules import ordered, prior_fields
from env.phone.world.world import Request, World
from env.protocol import Action, StepResult, ToolCall
from pipeline.types import Task, Verdict


@dataclass(slots=True)
class View:
    """What a scripted policy may look at.

    Attributes:
        env: hidden; only `oracle` reads its world's rules and its state, others what the last call came to.
        rng: the policy's own random numbers.
        noise: share of random acts of the noisy policies.
        taught: from earlier attempts.
        corrected: what the text of corrective feedback on a failed attempt advised.
        known: from this attempt.
        searched: whether the directory is open.
        form_sent: whether the one form is spent.
        last_codes: event codes of the last message.
        messages: sent so far.
    """

    env: PhoneEnv
    rng: Random
    noise: float
    taught: Knowledge
    corrected: Advice | None = None
    known: Knowledge = field(default_factory=Knowledge)
    searched: bool = False
    form_sent: bool = False
    last_codes: tuple[str, ...] = ()
    messages: int = 0

    @property
    def world(self) -> World:
        """The task's world."""
        return self.env.world

    @property
    def level(self) -> Level:
        """The difficulty, which an agent knows."""
        return self.world.level

    @property
    def requests(self) -> list[Request]:
        """What is not served yet, in the customer's order."""
        return [x for x in self.world.requests if x.request_id not in self.known.served]

    @property
    def cap(self) -> int:
        """Most fields of the form."""
        return self.level.max_form_fields

    def guess(self, line: Department) -> tuple[str, ...]:
        """Returns what the trade's habits say this line wants."""
        return prior_fields(self.world.company.industry, line.kind, self.level)

    def told(self, line: Department) -> LineKnowledge | None:
        """Returns what a line has said of its wants in this attempt."""
        told = self.known.lines.get(line.phone)
        return told if told is not None and told.kind else None

    def route(self, request: Request, knows_trade: bool) -> list[Department]:
        """Returns the lines to call for a request: as advised, by the trade's habits, or as lines said."""
        if self.corrected and (names := dict(self.corrected.routes).get(request.request_id)):
            return [self.line_named(name) for name in names]
        if knows_trade:
            return list(self.world.path(request))
        by_phone = {line.phone: line for line in self.world.company.departments}
        route = [self.world.server_of(request)]
        while len(route) < len(by_phone):
            key = (request.request_id, route[0].phone)
            before = self.known.before.get(key) or self.taught.before.get(key)
            if not before or by_phone[before[0]] in route:
                break
            route.insert(0, by_phone[before[0]])
        return route

    def line_named(self, name: str) -> Department:
        """Returns the directory's line of a name; of two, the one that is described as serving."""
        lines = [line for line in self.world.company.departments if line.name == name]
        return next((line for line in lines if line.kind != "sales"), lines[0])


Policy = Callable[[View], ToolCall | None]


def _search(view: View) -> ToolCall:
    return ToolCall(SEARCH, {"company_name": view.world.company.name})


def _form(fields: Sequence[str]) -> ToolCall:
    return ToolCall(FORM, {"fields": list(fields)})


def _call(
    view: View,
    line: Department,
    given: Sequence[str] = (),
    offered: Sequence[str] = (),
    request: Request | None = None,
) -> ToolCall:
    refused = view.known.refused | view.taught.refused
    values = {name: view.world.profile[name] for name in refused & view.known.doubtful}
    auth_info: dict[str, str | bool | None] = {name: values.get(name, FROM_FORM) for name in given}
    auth_info |= dict.fromkeys(offered)
    request_id = (request or view.world.requests[0]).request_id
    return ToolCall(CALL, {"phone_number": line.phone, "request": request_id, "auth_info": auth_info})


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
    if {"locked", "fabricated_auth"} & set(view.last_codes):
        return None
    outcome = view.env.outcome
    if outcome is not None and outcome.status == "auth_missing" and not outcome.is_probe:
        key = (outcome.request_id, outcome.phone)
        if key not in known.before or key in known.referred:
            return None
    for request in view.requests:
        route = view.route(request, knows_trade)
        line = next((x for x in route[:-1] if (request.request_id, x.phone) not in known.referred), route[-1])
        if known.opens.get(line.phone, 0) > view.messages + 1:
            continue
        given = ordered(known.form)
        if any((request.request_id, x.phone) in known.referred for x in route) and line.token is not None:
            given = (*given, REFERENCE)
        return _call(view, line, given, request=request)
    return ToolCall(WAIT, {})


def _from_earlier(view: View, line: Department) -> tuple[tuple[str, ...], bool] | None:
    """Returns the fields that feedback on earlier attempts points to, and whether they surely suffice.

    A line names what was missing beyond what it had been given, and some of that may not have counted:
    what the trade never asks for is left out, which is right unless this company asks for it.
    """
    told = view.taught.lines.get(line.phone)
    if told is None or not told.kind:
        return None
    if told.enough is not None:
        return ordered(told.enough), True
    if not told.missing:
        return None
    slots = INDUSTRIES[view.world.company.industry]
    plausible = {slots[slot] for slot in PRIORS[line.kind]}
    sent = told.sent
    fields = (*ordered(told.missing), *ordered((sent & plausible) - told.missing))
    return fields[: view.cap], told.kind == "all" and sent <= plausible and len(fields) <= view.cap


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
    told = view.told(line)
    level = view.level
    if told is not None:
        if told.kind in ("all", "vague") or told.enough is not None:
            return None
        if told.kind == "count" or told.asked > len(PRIORS[line.kind]):
            return None
    elif (earlier := _from_earlier(view, line)) is not None and earlier[1]:
        return None
    if level.probe_is_strike and level.strikes_to_lock is not None:
        lines = view.known.lines
        if level.locks_company:
            if sum(x.strikes for x in lines.values()) >= level.strikes_to_lock - 2:
                return None
        elif line.phone in lines and lines[line.phone].strikes >= level.strikes_to_lock - 1:
            return None
    calls = sum(len(view.world.path(request)) for request in view.world.requests)
    if view.messages + 2 + calls >= level.max_turns:
        return None
    named = ordered(told.missing) if told is not None else ()
    return tuple(dict.fromkeys((*guess, *named)))


def _wants(view: View, line: Department, guess: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Returns the fields to ask for on behalf of a line, and whether they surely suffice."""
    told = view.told(line)
    if told is not None and told.enough is not None:
        return ordered(told.enough), True
    if told is not None and told.kind == "all":
        return ordered(told.missing), True
    named = ordered(told.missing) if told is not None else ()
    earlier, is_sure = _from_earlier(view, line) or (tuple(guess), False)
    return tuple(dict.fromkeys((*named, *earlier))), is_sure


def _careful(view: View, knows_trade: bool) -> ToolCall | None:
    """Asks the lines before the one form, unless an earlier attempt already taught their wants."""
    if not view.searched:
        return _search(view)
    if view.form_sent:
        return _deliver(view, knows_trade)
    if view.corrected is not None:
        return _form(ordered(view.corrected.form))
    if "on_hold" in view.last_codes:
        return ToolCall(WAIT, {})
    lines = _lines(view, knows_trade)
    for line, request in lines.values():
        guess = view.guess(line) if knows_trade else ()
        if (offered := _asks_on(view, line, guess)) is None:
            continue
        if view.known.opens.get(line.phone, 0) > view.messages + 1:
            continue
        return _call(view, line, offered=offered, request=request)
    return _form(_union(view, [line for line, _ in lines.values()], knows_trade))


def _union(view: View, lines: Sequence[Department], knows_trade: bool) -> tuple[str, ...]:
    """Returns the form for all lines: what each wants, then what else would do, as far as it goes."""
    wanted: list[str] = []
    spare: list[str] = []
    for line in lines:
        fields, is_sure = _wants(view, line, view.guess(line) if knows_trade else ())
        wanted += fields
        for told in (view.told(line), view.taught.lines.get(line.phone)):
            spare += [name for other in (told.others if told else ()) for name in ordered(other)]
        if knows_trade and not is_sure and view.level.has_wait:
            spare += INDUSTRIES[view.world.company.industry].values()
    obtainable = [name for name in dict.fromkeys((*wanted, *spare)) if name not in view.taught.lacking]
    return tuple(obtainable[: view.cap]) or COMMON_FIELDS[:1]


def adaptive(view: View) -> ToolCall | None:
    """Offers what the prior predicts, then asks for what the lines named."""
    return _careful(view, knows_trade=True)


def prober(view: View) -> ToolCall | None:
    """Knows no prior: asks each line with an empty call first."""
    return _careful(view, knows_trade=False)


def prior_only(view: View) -> ToolCall | None:
    """Trusts the trade's habits and never asks; on a later try it heeds what it was told."""
    if not view.searched:
        return _search(view)
    if view.form_sent:
        return _deliver(view, knows_trade=True)
    fields = [
        name
        for line, _ in _lines(view, knows_trade=True).values()
        for name in (_from_earlier(view, line) or (view.guess(line), False))[0]
    ]
    return _form(tuple(dict.fromkeys(fields))[: view.cap])


def over_collector(view: View) -> ToolCall | None:
    """Asks for what everybody asks for, as much as the form takes."""
    if not view.searched:
        return _search(view)
    return _deliver(view, knows_trade=False) if view.form_sent else _form(COMMON_FIELDS[: view.cap])


def informed_over_collector(view: View) -> ToolCall | None:
    """Asks for all of the industry's slots, as far as the form takes them."""
    if not view.searched:
        return _search(view)
    slots = tuple(INDUSTRIES[view.world.company.industry].values())
    return _deliver(view, knows_trade=True) if view.form_sent else _form(slots[: view.cap])


def fabricator(view: View) -> ToolCall | None:
    """Makes values up instead of asking the customer."""
    if not view.searched:
        return _search(view)
    if "on_hold" in view.last_codes:
        return ToolCall(WAIT, {})
    line = view.world.path(view.world.requests[0])[0]
    call = _call(view, line)
    call.arguments["auth_info"] = {name: f"{view.rng.randrange(10_000):04d}" for name in view.guess(line)}
    return call


def random(view: View) -> ToolCall | None:
    """Does anything at all that is a valid call; stops now and then."""
    if view.rng.random() < 0.1:
        return None
    return random_act(view)


def random_act(view: View) -> ToolCall:
    """Returns a random valid call."""
    rng = view.rng
    kind = rng.choice((SEARCH, FORM, CALL, CALL, *([WAIT] if view.level.has_wait else [])))
    if kind == WAIT:
        return ToolCall(WAIT, {})
    if kind == SEARCH:
        return _search(view)
    vocabulary = view.world.company.vocabulary
    if kind == FORM:
        return _form(rng.sample(vocabulary, rng.randint(1, view.cap)))
    have = ordered(view.known.form)
    given = rng.sample(have, rng.randint(0, len(have)))
    line = rng.choice(view.world.company.departments)
    request = rng.choice(view.world.requests) if len(view.world.requests) > 1 else None
    return _call(view, line, given, request=request)


def noisy_adaptive(view: View) -> ToolCall | None:
    """Acts like `adaptive`, but with probability `noise` a message is random."""
    return random_act(view) if view.rng.random() < view.noise else adaptive(view)


POLICIES: MappingProxyType[str, Policy] = MappingProxyType(
    {
        "oracle": oracle,
        "adaptive": adaptive,
        "prober": prober,
        "prior_only": prior_only,
        "over_collector": over_collector,
        "informed_over_collector": informed_over_collector,
        "random": random,
        "fabricator": fabricator,
        "noisy_adaptive": noisy_adaptive,
    }
)
"""name -> scripted policy."""


def play_scripted(
    task: Task,
    policy: Policy | str,
    seed: int,
    noise: float = 0.0,
    earlier: Sequence[Sequence[Action]] = (),
    env: PhoneEnv | None = None,
    is_corrected: bool = False,
) -> tuple[list[Action], list[StepResult], Verdict]:
    """Returns one episode of a scripted policy: its messages, their results, the verdict.

    Args:
        task: to play.
        policy: a policy or its name in `POLICIES`.
        seed: of the wording and of the policy's random numbers.
        noise: share of random acts of the noisy policies; the others ignore it.
        earlier: messages of earlier attempts at the task; the policy knows their lessons.
        env: where to play; a new one by default. It is left as the episode ended.
        is_corrected: whether the policy also reads the text of corrective feedback on those that failed.

    Raises:
        ValueError: no policy of that name.
    """
    act = POLICIES[policy] if isinstance(policy, str) and policy in POLICIES else policy
    if isinstance(act, str):
        raise ValueError(f"policy {policy!r}; known: {', '.join(POLICIES)}")
    env = env or PhoneEnv()
    taught = Knowledge()
    corrected = None
    for actions in earlier:
        past = PhoneEnv(verbosity="corrective")
        past.reset(task, seed)
        for action in actions:
            result = past.step(action)
            taught.read(past.world, action, result, past.outcome)
        if is_corrected and (feedback := past.feedback()) is not None:
            names = [line.name for line in past.world.company.departments]
            corrected = read_advice(feedback.text, names)
    env.reset(task, seed)
    view = View(env, Random(f"{task.task_id}:{seed}:policy:0"), noise, taught, corrected)
    style = CompactStyle()
    played: list[Action] = []
    results: list[StepResult] = []
    while not env.is_over:
        call = act(view)
        action = style.action_of(call)
        result = env.step(action)
        played.append(action)
        results.append(result)
        view.messages += 1
        view.last_codes = tuple(event.code for event in result.events)
        view.known.read(env.world, action, result, env.outcome)
        view.searched |= "found" in view.last_codes
        view.form_sent |= "form" in view.last_codes
    return played, results, env.verdict()
