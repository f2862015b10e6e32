"""What a form, a call or waiting does to the state: pure functions that environment and solver share."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace

from env.phone.world.companies import Department
from env.phone.world.lexicon import REFERENCE
from env.phone.world.rules import Disclosure, disclose, satisfied
from env.phone.world.world import Request, World


@dataclass(frozen=True, slots=True)
class Sent:
    """What a call carries, by how it stands to this rollout's own values.

    Attributes:
        given: fields with the customer's right value, from the form, and a line's reference.
        mismatched: fields with another field's value, or with one that the customer said wrong.
        fabricated: fields with a value that this rollout was never given.
        offered: fields that are only offered.
    """

    given: frozenset[str] = frozenset()
    mismatched: frozenset[str] = frozenset()
    fabricated: frozenset[str] = frozenset()
    offered: frozenset[str] = frozenset()

    @property
    def is_probe(self) -> bool:
        """Whether the call carries no value at all."""
        return not (self.given or self.mismatched or self.fabricated)


@dataclass(frozen=True, slots=True)
class Held:
    """A call that a busy line has put on hold."""

    phone: str
    request_id: str
    sent: Sent


@dataclass(frozen=True, slots=True)
class State:
    """The abstract state of an episode: what decides whether and how soon it can succeed.

    Attributes:
        form: fields that the form gave values for, or None before the form.
        served: ids of served requests.
        strikes: (phone, failed identifications) of each line that has any, sorted.
        tick: assistant messages so far, the present one included while it is played.
        ended: the policy stopped, or everything is served.
        referred: (request id, phone) of each line that has referred a request on; where the next line wants a
            reference, this rollout has it from then on.
        rung: busy lines that have been called: they take the next call at once.
        held: the call on hold, if any.
    """

    form: frozenset[str] | None = None
    served: frozenset[str] = frozenset()
    strikes: tuple[tuple[str, int], ...] = ()
    tick: int = 0
    ended: bool = False
    referred: frozenset[tuple[str, str]] = frozenset()
    rung: frozenset[str] = frozenset()
    held: Held | None = None

    def strikes_of(self, phone: str) -> int:
        """Returns how many identifications failed at a line."""
        return dict(self.strikes).get(phone, 0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call, or waiting, came to.

    Attributes:
        status: served, referred, auth_missing, auth_mismatch, fabricated_auth, wrong_department,
            must_call_first, on_hold, closed, locked, invalid_number or unknown_request; of waiting also
            waited or nothing_to_wait_for.
        department: name of the line that gave the status, "" where there is none.
        called: name of the line that was dialled; differs after a warm transfer.
        transferred: whether the dialled line passed the call on.
        other_department: who serves the request, comes next or must be called first, where the line says so.
        fields: fields the status concerns.
        disclosure: what the line said is missing.
        is_probe: the call carried no value.
        opens: tick at which a closed line opens.
        request_id: of the request that was spoken of, "" where there is none.
        phone: of the line that gave the status, "" where there is none.
        gives_reference: whether the line gave a reference for the next one.
    """

    status: str
    department: str = ""
    called: str = ""
    transferred: bool = False
    other_department: str = ""
    fields: frozenset[str] = frozenset()
    disclosure: Disclosure = field(default_factory=Disclosure)
    is_probe: bool = False
    opens: int = 0
    request_id: str = ""
    phone: str = ""
    gives_reference: bool = False


def tick(state: State) -> State:
    """Returns the state one assistant message later."""
    return replace(state, tick=state.tick + 1)


def submit_form(world: World, state: State, fields: Set[str]) -> tuple[State, str]:
    """Returns the state after a form, and "form", "form_already_submitted" or "form_too_long"."""
    if state.form is not None:
        return state, "form_already_submitted"
    if len(fields) > world.level.max_form_fields:
        return state, "form_too_long"
    return replace(state, form=frozenset(fields & world.profile.keys())), "form"


def place_call(world: World, state: State, phone: str, request_id: str, sent: Sent) -> tuple[State, Outcome]:
    """Returns the state after a call, and what it came to. A call on hold is dropped.

    Checks run in this order: number, request, lock, hours, hold; then what the line serves, who has referred
    the customer and who is calling, or who is calling first.
    """
    state = state if state.held is None else replace(state, held=None)
    line = world.department_at(phone)
    request = world.request(request_id)
    if line is None or request is None:
        name = line.name if line else ""
        status = "unknown_request" if line else "invalid_number"
        return state, Outcome(status, name, name, is_probe=sent.is_probe)

    def turned_away(status: str, opens: int = 0) -> Outcome:
        return Outcome(
            status,
            line.name,
            line.name,
            is_probe=sent.is_probe,
            opens=opens,
            request_id=request_id,
            phone=phone,
        )

    if is_locked(world, state, phone):
        return state, turned_away("locked")
    if (opens := world.opens_at(phone)) > state.tick:
        return state, turned_away("closed", opens)
    if phone in world.busy and phone not in state.rung:
        held = Held(phone, request_id, sent)
        return replace(state, rung=state.rung | {phone}, held=held), turned_away("on_hold")
    return _answer(world, state, line, request, sent)


def wait(world: World, state: State) -> tuple[State, Outcome]:
    """Returns the state after waiting: the held call goes on, or a tick passes while some line is closed."""
    if state.held is None:
        is_closed = any(opens > state.tick for _, opens in world.closings)
        return state, Outcome("waited" if is_closed else "nothing_to_wait_for")
    held = state.held
    line, request = world.department_at(held.phone), world.request(held.request_id)
    assert line is not None
    assert request is not None
    return _answer(world, replace(state, held=None), line, request, held.sent)


def is_locked(world: World, state: State, phone: str) -> bool:
    """Returns whether failed identifications have locked a line."""
    most = world.level.strikes_to_lock
    if most is None or not state.strikes:
        return False
    if world.level.locks_company:
        return sum(count for _, count in state.strikes) >= most
    return state.strikes_of(phone) >= most


def _answer(
    world: World,
    state: State,
    line: Department,
    request: Request,
    sent: Sent,
    called: Department | None = None,
) -> tuple[State, Outcome]:
    """Returns what the line that has taken a call makes of it; `called` passed it on, if given."""
    level = world.level
    path = world.path(request)
    request_id = request.request_id

    def outcome(
        status: str, fields: Set[str] = frozenset(), said: Disclosure | None = None, other: str = ""
    ) -> Outcome:
        return Outcome(
            status,
            line.name,
            (called or line).name,
            called is not None,
            other,
            frozenset(fields),
            said or Disclosure(),
            sent.is_probe,
            request_id=request_id,
            phone=line.phone,
        )

    if called is not None and is_locked(world, state, line.phone):
        return state, outcome("locked")
    if not line.screen_first and (refused := _identify(world, state, line, sent)) is not None:
        return refused[0], outcome(*refused[1:])
    if line not in path:
        if level.wrong_department == "transfer":
            return _answer(world, state, _next_on(path, state, request_id), request, sent, called=line)
        other = path[-1].name if level.wrong_department == "named" else ""
        return state, outcome("wrong_department", other=other)
    place = path.index(line)
    if place and (request_id, path[place - 1].phone) not in state.referred:
        said = Disclosure()
        if line.screen_first:
            # Nobody has identified the customer yet, so the line says what it will want.
            sets = [needed - {REFERENCE} for needed in line.sets]
            said = disclose(line.disclosure, sets, sent.given - {REFERENCE}, sent.offered)
        first = path[place - 1].name if level.names_prerequisite else ""
        return state, outcome("must_call_first", set(said.missing), said, first)
    if line.screen_first and (refused := _identify(world, state, line, sent)) is not None:
        return refused[0], outcome(*refused[1:])
    if line == path[-1]:
        return replace(state, served=state.served | {request_id}), outcome("served")
    following = path[place + 1]
    referred = replace(outcome("referred", other=following.name), gives_reference=following.token is not None)
    return replace(state, referred=state.referred | {(request_id, line.phone)}), referred


def _next_on(path: tuple[Department, ...], state: State, request_id: str) -> Department:
    """Returns the line of a request's path that comes next."""
    return next(
        (line for line in path[:-1] if (request_id, line.phone) not in state.referred),
        path[-1],
    )


def _identify(
    world: World, state: State, line: Department, sent: Sent
) -> tuple[State, str, Set[str], Disclosure | None] | None:
    """Returns None for a customer whom the line knows now; else the state, status, fields and disclosure."""
    if sent.fabricated:
        return _strike(state, line.phone), "fabricated_auth", sent.fabricated, None
    if satisfied(line.sets, sent.given):
        return None
    if sent.mismatched:
        return _strike(state, line.phone), "auth_mismatch", sent.mismatched, None
    said = disclose(line.disclosure, line.sets, sent.given, sent.offered)
    if not sent.is_probe or world.level.probe_is_strike:
        state = _strike(state, line.phone)
    return state, "auth_missing", set(said.missing), said


def _strike(state: State, phone: str) -> State:
    counts = dict(state.strikes)
    counts[phone] = counts.get(phone, 0) + 1
    return replace(state, strikes=tuple(sorted(counts.items())))
