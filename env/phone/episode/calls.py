"""What a form, a call or waiting does to the state: pure functions that environment and solver share."""

from collections.abc import Set
from dataclasses import dataclass, field, replace

from env.phone.world.companies import Department
from env.phone.world.lexicon import REFERENCE
from env.phone.world.rules import Disclosure, disclose, satisfied
from env.phone.world.world import Request, World


@dataclass(frozen=True, slots=True)
class Sent:
    """What a call carries: fields, by how their values stand to this rollout's own."""

    given: frozenset[str] = frozenset()  # the right value, from the form; or a line's reference
    mismatched: frozenset[str] = frozenset()  # another field's value, or one that the customer said wrong
    fabricated: frozenset[str] = frozenset()  # a value that this rollout was never given
    offered: frozenset[str] = frozenset()  # no value

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
    """The abstract state of an episode: what decides whether and how soon it can succeed."""

    form: frozenset[str] | None = None  # fields that the form gave values for; None before the form
    served: frozenset[str] = frozenset()  # ids of requests
    strikes: tuple[tuple[str, int], ...] = ()  # (phone, failed identifications) where there are any, sorted
    tick: int = 0  # assistant messages so far, the present one included while it is played
    ended: bool = False  # the policy stopped, or everything is served
    # (request id, phone) of each line that has referred a request on; it gave its reference then, if any.
    referred: frozenset[tuple[str, str]] = frozenset()
    rung: frozenset[str] = frozenset()  # busy lines that have been called: they take the next call at once
    held: Held | None = None  # the call on hold

    def strikes_of(self, phone: str) -> int:
        """Returns how many identifications failed at a line."""
        return dict(self.strikes).get(phone, 0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call, or waiting, came to; words are "" where there is nothing to say."""

    status: str  # code of the event that tells of it
    department: str = ""  # name of the line that gave the status
    transferred_by: str = ""  # name of the dialled line, where it passed the call on
    other_department: str = ""  # who serves the request, comes next or comes first, where the line says so
    fields: frozenset[str] = frozenset()  # fields the status concerns
    disclosure: Disclosure = field(default_factory=Disclosure)  # what the line said is missing
    sent: Sent = field(default_factory=Sent)  # what the call carried
    opens: int = 0  # tick at which a closed line opens
    request_id: str = ""  # what was spoken of
    phone: str = ""  # of the line that gave the status
    gives_reference: bool = False  # whether the line gave a reference for the next one


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
        return state, Outcome(status, name, sent=sent)
    heard = Outcome("", line.name, sent=sent, request_id=request_id, phone=phone)
    if is_locked(world, state, phone):
        return state, replace(heard, status="locked")
    if (opens := world.opens_at(phone)) > state.tick:
        return state, replace(heard, status="closed", opens=opens)
    if phone in world.busy and phone not in state.rung:
        held = Held(phone, request_id, sent)
        return replace(state, rung=state.rung | {phone}, held=held), replace(heard, status="on_hold")
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
    world: World, state: State, line: Department, request: Request, sent: Sent, transferred_by: str = ""
) -> tuple[State, Outcome]:
    """Returns what the line that has taken a call makes of it."""
    level = world.level
    path = world.path(request)
    request_id = request.request_id
    heard = Outcome("", line.name, transferred_by, sent=sent, request_id=request_id, phone=line.phone)
    if transferred_by and is_locked(world, state, line.phone):
        return state, replace(heard, status="locked")
    refused = _refused(world, state, line, sent, heard)
    if refused is not None and not line.screen_first:
        return refused
    if line not in path:
        if level.wrong_department == "transfer":
            following = next((x for x in path[:-1] if (request_id, x.phone) not in state.referred), path[-1])
            return _answer(world, state, following, request, sent, line.name)
        other = path[-1].name if level.wrong_department == "named" else ""
        return state, replace(heard, status="wrong_department", other_department=other)
    place = path.index(line)
    if place and (request_id, path[place - 1].phone) not in state.referred:
        said = Disclosure()
        if line.screen_first:
            # Nobody has identified the customer yet, so the line says what it will want.
            sets = [needed - {REFERENCE} for needed in line.sets]
            said = disclose(line.disclosure, sets, sent.given - {REFERENCE}, sent.offered)
        first = path[place - 1].name if level.names_prerequisite else ""
        heard = replace(heard, status="must_call_first", other_department=first)
        return state, replace(heard, fields=frozenset(said.missing), disclosure=said)
    if refused is not None:
        return refused
    if line == path[-1]:
        return replace(state, served=state.served | {request_id}), replace(heard, status="served")
    following = path[place + 1]
    heard = replace(heard, status="referred", other_department=following.name)
    state = replace(state, referred=state.referred | {(request_id, line.phone)})
    return state, replace(heard, gives_reference=following.wants_reference)


def _refused(
    world: World, state: State, line: Department, sent: Sent, heard: Outcome
) -> tuple[State, Outcome] | None:
    """Returns fabricated_auth, auth_mismatch or auth_missing; None for a customer whom the line knows now."""
    if not sent.fabricated and satisfied(line.sets, sent.given):
        return None
    if sent.fabricated:
        refused = replace(heard, status="fabricated_auth", fields=sent.fabricated)
    elif sent.mismatched:
        refused = replace(heard, status="auth_mismatch", fields=sent.mismatched)
    else:
        said = disclose(line.disclosure, line.sets, sent.given, sent.offered)
        refused = replace(heard, status="auth_missing", fields=frozenset(said.missing), disclosure=said)
    if sent.is_probe and not world.level.probe_is_strike:
        return state, refused
    counts = dict(state.strikes)
    counts[line.phone] = counts.get(line.phone, 0) + 1
    return replace(state, strikes=tuple(sorted(counts.items()))), refused
