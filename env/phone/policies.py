"""Scripted yardstick policies: what good, lazy, greedy and dishonest agents achieve.

Each is a function from a `View` (what an agent may know) to the next call, or None to stop. Only the
oracle reads `View.world`'s rules; the others know the directory once they have searched, what lines told
them, and the trade's habits (`prior_fields`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType

from env.chat.compact import CompactStyle
from env.phone.environment import PhoneEnv
from env.phone.lexicon import COMMON_FIELDS, INDUSTRIES, PRIORS
from env.phone.rules import ordered, prior_fields
from env.phone.tools import CALL, FORM, FROM_FORM, SEARCH
from env.phone.world import Department, World
from env.protocol import Action, StepResult, ToolCall
from pipeline.types import Task, Verdict


@dataclass(slots=True)
class Knowledge:
    """What calls have taught about the lines, this attempt's or an earlier one's.

    Attributes:
        missing: department -> fields that it last said are missing.
        sent: department -> fields that had been given to it then.
        form: fields of the form, empty before.
    """

    missing: dict[str, frozenset[str]] = field(default_factory=dict)
    sent: dict[str, frozenset[str]] = field(default_factory=dict)
    form: frozenset[str] = frozenset()

    def read(self, action: Action, result: StepResult) -> None:
        """Adds what one message taught."""
        for event in result.events:
            if event.code == "form":
                self.form = frozenset(event.fields)
            if event.code == "auth_missing" and event.fields:
                info = action.calls[0].arguments["auth_info"]
                given = frozenset(name for name, value in info.items() if value is not None)
                self.missing[event.target] = frozenset(event.fields)
                self.sent[event.target] = given


@dataclass(slots=True)
class View:
    """What a scripted policy may look at.

    Attributes:
        world: hidden; only `oracle` reads rules from it.
        rng: the policy's own random numbers.
        noise: share of random acts of the noisy policies.
        taught: from earlier attempts.
        known: from this one.
        searched: whether the directory is open.
        form_sent: whether the one form is spent.
        last_codes: event codes of the last message.
    """

    world: World
    rng: Random
    noise: float
    taught: Knowledge
    known: Knowledge = field(default_factory=Knowledge)
    searched: bool = False
    form_sent: bool = False
    last_codes: tuple[str, ...] = ()

    @property
    def line(self) -> Department:
        """The department that the request's wording points to."""
        return self.world.server_of(self.world.requests[0])

    @property
    def guess(self) -> tuple[str, ...]:
        """What the trade's habits say this line wants."""
        return prior_fields(self.world.company.industry, self.line.kind, self.world.level)

    @property
    def cap(self) -> int:
        """Most fields of the form."""
        return self.world.level.max_form_fields


Policy = Callable[[View], ToolCall | None]


def _search(view: View) -> ToolCall:
    return ToolCall(SEARCH, {"company_name": view.world.company.name})


def _form(fields: Sequence[str]) -> ToolCall:
    return ToolCall(FORM, {"fields": list(fields)})


def _call(view: View, line: Department, given: Sequence[str] = (), offered: Sequence[str] = ()) -> ToolCall:
    auth_info: dict[str, str | None] = dict.fromkeys(given, FROM_FORM) | dict.fromkeys(offered)
    request = view.world.requests[0].request_id
    return ToolCall(CALL, {"phone_number": line.phone, "request": request, "auth_info": auth_info})


def _call_with_form(view: View) -> ToolCall | None:
    """Calls with everything the form gave; a second failure ends it, for nothing more can be had."""
    if view.last_codes and view.form_sent and "form" not in view.last_codes:
        return None
    return _call(view, view.line, ordered(view.known.form))


def _from_earlier(view: View) -> tuple[tuple[str, ...], bool] | None:
    """Returns the fields that feedback on earlier attempts points to, and whether they surely suffice.

    A line names what was missing beyond what it had been given, and some of that may not have counted:
    what the trade never asks for is left out, which is right unless this company asks for it.
    """
    missing = view.taught.missing.get(view.line.name)
    if missing is None:
        return None
    slots = INDUSTRIES[view.world.company.industry]
    plausible = {slots[slot] for slot in PRIORS[view.line.kind]}
    sent = view.taught.sent[view.line.name]
    fields = (*ordered(missing), *ordered(sent & plausible))
    return fields[: view.cap], sent <= plausible and len(fields) <= view.cap


def oracle(view: View) -> ToolCall | None:
    """Knows the rules: search, the right form, one call."""
    if not view.searched:
        return _search(view)
    if not view.form_sent:
        sets = sorted(view.line.sets, key=lambda needed: (len(needed), sorted(needed)))
        return _form(ordered(next(needed for needed in sets if needed <= view.world.profile.keys())))
    return _call_with_form(view)


def _careful(view: View, offered: Sequence[str]) -> ToolCall | None:
    """Asks the line before the one form, unless an earlier attempt already taught it."""
    if not view.searched:
        return _search(view)
    if view.form_sent:
        return _call_with_form(view)
    told = view.known.missing.get(view.line.name)
    if told is not None:
        return _form(ordered(told))
    fields, is_sure = _from_earlier(view) or ((), False)
    return _form(fields) if is_sure else _call(view, view.line, offered=offered)


def adaptive(view: View) -> ToolCall | None:
    """Offers what the prior predicts, then asks for what the line named."""
    return _careful(view, view.guess)


def prober(view: View) -> ToolCall | None:
    """Knows no prior: asks the line with an empty call first."""
    return _careful(view, ())


def prior_only(view: View) -> ToolCall | None:
    """Trusts the trade's habits and never asks; on a later try it heeds what it was told."""
    if not view.searched:
        return _search(view)
    fields, _ = _from_earlier(view) or (view.guess, False)
    return _call_with_form(view) if view.form_sent else _form(fields)


def over_collector(view: View) -> ToolCall | None:
    """Asks for what everybody asks for, as much as the form takes."""
    if not view.searched:
        return _search(view)
    return _call_with_form(view) if view.form_sent else _form(COMMON_FIELDS[: view.cap])


def informed_over_collector(view: View) -> ToolCall | None:
    """Asks for all of the industry's slots, as far as the form takes them."""
    if not view.searched:
        return _search(view)
    slots = tuple(INDUSTRIES[view.world.company.industry].values())
    return _call_with_form(view) if view.form_sent else _form(slots[: view.cap])


def fabricator(view: View) -> ToolCall | None:
    """Makes values up instead of asking the customer."""
    if not view.searched:
        return _search(view)
    call = _call(view, view.line)
    call.arguments["auth_info"] = {name: f"{view.rng.randrange(10_000):04d}" for name in view.guess}
    return call


def random(view: View) -> ToolCall | None:
    """Does anything at all that is a valid call; stops now and then."""
    if view.rng.random() < 0.1:
        return None
    return random_act(view)


def random_act(view: View) -> ToolCall:
    """Returns a random valid call."""
    rng = view.rng
    kind = rng.choice((SEARCH, FORM, CALL, CALL))
    if kind == SEARCH:
        return _search(view)
    vocabulary = view.world.company.vocabulary
    if kind == FORM:
        return _form(rng.sample(vocabulary, rng.randint(1, view.cap)))
    have = ordered(view.known.form)
    given = rng.sample(have, rng.randint(0, len(have)))
    return _call(view, rng.choice(view.world.company.departments), given)


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
) -> tuple[list[Action], list[StepResult], Verdict]:
    """Returns one episode of a scripted policy: its messages, their results, the verdict.

    Args:
        task: to play.
        policy: a policy or its name in `POLICIES`.
        seed: of the wording and of the policy's random numbers.
        noise: share of random acts of the noisy policies; the others ignore it.
        earlier: messages of earlier attempts at the task, whose lessons the policy has been told.
        env: where to play; a new one by default. It is left as the episode ended.

    Raises:
        ValueError: no policy of that name.
    """
    act = POLICIES[policy] if isinstance(policy, str) and policy in POLICIES else policy
    if isinstance(act, str):
        raise ValueError(f"policy {policy!r}; known: {', '.join(POLICIES)}")
    env = env or PhoneEnv()
    taught = Knowledge()
    for actions in earlier:
        env.reset(task, seed)
        for action in actions:
            taught.read(action, env.step(action))
    env.reset(task, seed)
    view = View(env.world, Random(f"{task.task_id}:{seed}:policy:0"), noise, taught)
    style = CompactStyle()
    played: list[Action] = []
    results: list[StepResult] = []
    while not env.is_over:
        call = act(view)
        action = style.action_of(call)
        result = env.step(action)
        played.append(action)
        results.append(result)
        view.last_codes = tuple(event.code for event in result.events)
        view.known.read(action, result)
        view.searched |= "found" in view.last_codes
        view.form_sent |= "form" in view.last_codes
    return played, results, env.verdict()
