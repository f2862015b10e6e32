"""What a scripted policy may know: what episodes taught it of lines, routes, form and hours; and its view."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from env.phone.episode.calls import Outcome, State
from env.phone.episode.environment import PhoneEnv
from env.phone.world.companies import Department
from env.phone.world.levels import Level
from env.phone.world.lexicon import INDUSTRIES, PRIORS, REFERENCE
from env.phone.world.rules import ordered, prior_fields
from env.phone.world.world import Request, World
from pipeline.types import Event


@dataclass(slots=True)
class LineKnowledge:
    """What one line has said."""

    kind: str = ""  # how it discloses; "" before it has
    missing: frozenset[str] = frozenset()  # named last; all that it ever named, if it names one at a time
    others: tuple[frozenset[str], ...] = ()  # other sets that would do
    sent: frozenset[str] = frozenset()  # fields that had been given to it then
    enough: frozenset[str] | None = None  # fields of which it said that they will do
    strikes: int = 0  # identifications that failed there
    asked: int = 0  # calls that it answered with what it wants


@dataclass(slots=True)
class Knowledge:
    """What calls have taught, this attempt's or an earlier one's."""

    lines: dict[str, LineKnowledge] = field(default_factory=dict)  # by phone
    # (request id, phone) -> phones that may have to be called first, the likeliest first
    before: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    lacking: frozenset[str] = frozenset()  # fields that the customer has not
    doubtful: frozenset[str] = frozenset()  # fields with two values, the first of which may be wrong
    refused: frozenset[str] = frozenset()  # fields with a first value that was refused
    opens: dict[str, int] = field(default_factory=dict)  # phone -> tick at which it opens

    def of(self, line: Department) -> LineKnowledge:
        """Returns what a line has said."""
        return self.lines.get(line.phone, LineKnowledge())

    def read(self, world: World, events: Sequence[Event], outcome: Outcome | None) -> None:
        """Adds what one message taught. Of the world only the directory is looked at."""
        for event in events:
            if event.code == "unavailable":
                self.lacking |= set(event.fields)
            elif event.code == "two_values":
                self.doubtful |= set(event.fields)
        if outcome is not None and outcome.phone:
            self._hear(world, outcome)

    def _hear(self, world: World, outcome: Outcome) -> None:
        line = self.lines.setdefault(outcome.phone, LineKnowledge())
        key = (outcome.request_id, outcome.phone)
        match outcome.status:
            case "closed":
                self.opens[outcome.phone] = outcome.opens
            case "auth_mismatch":
                line.strikes += 1
                self.refused |= outcome.fields
            case "auth_missing":
                line.strikes += not outcome.sent.is_probe or world.level.probe_is_strike
                if outcome.fields == {REFERENCE}:
                    self.before.setdefault(key, _guesses(world, outcome.phone))
            case "must_call_first":
                named = [x.phone for x in world.company.departments if x.name == outcome.other_department]
                self.before.setdefault(key, named[:1] or _guesses(world, outcome.phone))
            case "wrong_department":
                for candidates in self.before.values():
                    if outcome.phone in candidates[:1] and len(candidates) > 1:
                        candidates.pop(0)
        said = outcome.disclosure
        if said.kind:
            sent = outcome.sent
            given = sent.given | sent.mismatched | sent.fabricated
            line.asked += 1
            line.kind = said.kind
            missing = frozenset(said.missing) - {REFERENCE}
            if missing or said.kind == "all":
                line.missing = missing | line.missing if said.kind == "first" else missing
                line.others = tuple(frozenset(other) - {REFERENCE} for other in said.others)
                line.sent = given - {REFERENCE}
            if said.is_enough:
                line.enough = given | sent.offered


def _guesses(world: World, phone: str) -> list[str]:
    """Returns who may have to be called before a line that does not say so: general lines first."""
    order = ("customer_service", "billing")
    others = [line for line in world.company.departments if line.phone != phone and line.kind != "sales"]
    others.sort(key=lambda line: (order.index(line.kind) if line.kind in order else len(order), line.name))
    return [line.phone for line in others]


@dataclass(slots=True)
class View:
    """What a scripted policy may look at."""

    env: PhoneEnv  # only `oracle` reads the world's rules, others what has been said and done
    rng: Random  # the policy's own
    noise: float  # share of random acts of the noisy policies
    taught: Knowledge  # from earlier attempts
    known: Knowledge = field(default_factory=Knowledge)  # from this attempt

    @property
    def world(self) -> World:
        """The task's world."""
        return self.env.world

    @property
    def level(self) -> Level:
        """The difficulty, which an agent knows."""
        return self.world.level

    @property
    def state(self) -> State:
        """What has been reached."""
        return self.env.state

    @property
    def searched(self) -> bool:
        """Whether the directory is open."""
        return any(event.code == "found" for event in self.env.events)

    @property
    def last_codes(self) -> set[str]:
        """What the last message came to."""
        return {event.code for event in self.env.events if event.turn == self.state.tick - 1}

    @property
    def requests(self) -> list[Request]:
        """What is not served yet, in the customer's order."""
        return [x for x in self.world.requests if x.request_id not in self.state.served]

    def guess(self, line: Department) -> tuple[str, ...]:
        """Returns what the trade's habits say this line wants."""
        return prior_fields(self.world.company.industry, line.kind, self.level)

    def from_earlier(self, line: Department) -> tuple[tuple[str, ...], bool] | None:
        """Returns the fields that feedback on earlier attempts points to, and whether they surely suffice.

        A line names what was missing beyond what it had been given, and some of that may not have counted:
        what the trade never asks for is left out, which is right unless this company asks for it.
        """
        told = self.taught.of(line)
        if told.enough is not None:
            return ordered(told.enough), True
        if not told.missing:
            return None
        slots = INDUSTRIES[self.world.company.industry]
        plausible = {slots[slot] for slot in PRIORS[line.kind]}
        fields = (*ordered(told.missing), *ordered((told.sent & plausible) - told.missing))
        cap = self.level.max_form_fields
        return fields[:cap], told.kind == "all" and told.sent <= plausible and len(fields) <= cap

    def route(self, request: Request, knows_trade: bool) -> list[Department]:
        """Returns the lines to call for a request: by the trade's habits, or as lines said."""
        path = self.world.path(request)
        if knows_trade:
            return list(path)
        by_phone = {line.phone: line for line in self.world.company.departments}
        route = [path[-1]]
        while len(route) < len(by_phone):
            key = (request.request_id, route[0].phone)
            before = self.known.before.get(key) or self.taught.before.get(key)
            if not before or by_phone[before[0]] in route:
                break
            route.insert(0, by_phone[before[0]])
        return route
