"""What a form or a call does to the state: pure functions that the environment and the solver share."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace

from env.phone.rules import Disclosure, disclose, satisfied
from env.phone.world import World


@dataclass(frozen=True, slots=True)
class State:
    """The abstract state of an episode: what decides whether and how soon it can succeed.

    Attributes:
        form: fields whose values the form gave, or None before the form.
        served: ids of served requests.
        strikes: (phone, failed identifications) of each line that has any, sorted.
        tick: assistant messages so far.
        ended: the policy stopped, or everything is served.
    """

    form: frozenset[str] | None = None
    served: frozenset[str] = frozenset()
    strikes: tuple[tuple[str, int], ...] = ()
    tick: int = 0
    ended: bool = False

    def strikes_of(self, phone: str) -> int:
        """Returns how many identifications failed at a line."""
        return dict(self.strikes).get(phone, 0)


@dataclass(frozen=True, slots=True)
class Sent:
    """What a call carries, by how it stands to this rollout's own values.

    Attributes:
        given: fields with the customer's right value, from the form.
        mismatched: fields with another field's value.
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
class Outcome:
    """What a call came to.

    Attributes:
        status: served, auth_missing, auth_mismatch, fabricated_auth, wrong_department, locked,
            invalid_number or unknown_request.
        department: name of the line that gave the status, "" for an invalid number.
        called: name of the line that was dialled; differs after a warm transfer.
        transferred: whether the dialled line passed the call on.
        right_department: with wrong_department: who serves the request.
        fields: fields the status concerns.
        disclosure: what the line said is missing.
        is_probe: the call carried no value.
    """

    status: str
    department: str = ""
    called: str = ""
    transferred: bool = False
    right_department: str = ""
    fields: frozenset[str] = frozenset()
    disclosure: Disclosure = field(default_factory=Disclosure)
    is_probe: bool = False


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
    """Returns the state after a call, and what it came to.

    Checks run in this order: number, request, lock, what the line serves, who is calling.
    """
    called = world.department_at(phone)
    if called is None:
        return state, Outcome("invalid_number", is_probe=sent.is_probe)
    request = world.request(request_id)
    if request is None:
        return state, Outcome("unknown_request", called.name, called.name, is_probe=sent.is_probe)
    level = world.level

    def is_locked(number: str) -> bool:
        return level.strikes_to_lock is not None and state.strikes_of(number) >= level.strikes_to_lock

    if is_locked(called.phone):
        return state, Outcome("locked", called.name, called.name, is_probe=sent.is_probe)
    line = world.server_of(request)
    transferred = line.phone != called.phone
    if transferred and level.wrong_department == "named":
        return state, Outcome(
            "wrong_department",
            called.name,
            called.name,
            right_department=line.name,
            is_probe=sent.is_probe,
        )

    def outcome(status: str, fields: Set[str] = frozenset(), said: Disclosure | None = None) -> Outcome:
        return Outcome(
            status,
            line.name,
            called.name,
            transferred,
            fields=frozenset(fields),
            disclosure=said or Disclosure(),
            is_probe=sent.is_probe,
        )

    if is_locked(line.phone):
        return state, outcome("locked")
    if sent.fabricated:
        return _strike(state, line.phone), outcome("fabricated_auth", sent.fabricated)
    if satisfied(line.sets, sent.given):
        return replace(state, served=state.served | {request_id}), outcome("served")
    if sent.mismatched:
        return _strike(state, line.phone), outcome("auth_mismatch", sent.mismatched)
    said = disclose(line.disclosure, line.sets, sent.given, sent.offered)
    is_strike = not sent.is_probe or level.probe_is_strike
    return (_strike(state, line.phone) if is_strike else state), outcome(
        "auth_missing", set(said.missing), said
    )


def _strike(state: State, phone: str) -> State:
    counts = dict(state.strikes)
    counts[phone] = counts.get(phone, 0) + 1
    return replace(state, strikes=tuple(sorted(counts.items())))
