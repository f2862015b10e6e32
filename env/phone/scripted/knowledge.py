"""What an episode teaches a scripted policy: lines, routes, the form, and who is closed."""

from __future__ import annotations

from dataclasses import dataclass, field

from env.phone.episode.calls import Outcome
from env.phone.episode.tools import CALL
from env.phone.world.lexicon import REFERENCE
from env.phone.world.world import World
from env.protocol import Action, StepResult


@dataclass(slots=True)
class LineKnowledge:
    """What one line has said.

    Attributes:
        kind: how it discloses; "" before it has.
        missing: fields that it last named as missing; all that it ever named, if it names one at a time.
        others: other sets that would do.
        sent: fields that had been given to it then.
        enough: fields of which it said that they will do.
        strikes: identifications that failed there.
        asked: calls that it answered with what it wants.
    """

    kind: str = ""
    missing: frozenset[str] = frozenset()
    others: tuple[frozenset[str], ...] = ()
    sent: frozenset[str] = frozenset()
    enough: frozenset[str] | None = None
    strikes: int = 0
    asked: int = 0


@dataclass(slots=True)
class Knowledge:
    """What calls have taught, this attempt's or an earlier one's.

    Attributes:
        lines: phone -> what it said.
        before: (request id, phone) -> phones that may have to be called first, the likeliest first.
        form: fields of the form, empty before.
        lacking: fields that the customer has not.
        doubtful: fields with two values, the first of which may be wrong.
        refused: fields with a first value that was refused.
        opens: phone -> tick at which it opens.
        served: ids of served requests.
        referred: (request id, phone) of lines that have referred a request on.
    """

    lines: dict[str, LineKnowledge] = field(default_factory=dict)
    before: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    form: frozenset[str] = frozenset()
    lacking: frozenset[str] = frozenset()
    doubtful: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    opens: dict[str, int] = field(default_factory=dict)
    served: set[str] = field(default_factory=set)
    referred: set[tuple[str, str]] = field(default_factory=set)
    _sent: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())

    def read(self, world: World, action: Action, result: StepResult, outcome: Outcome | None) -> None:
        """Adds what one message taught. Of the world only the directory is looked at."""
        for event in result.events:
            if event.code == "form":
                self.form = frozenset(event.fields)
            elif event.code == "unavailable":
                self.lacking |= set(event.fields)
            elif event.code == "two_values":
                self.doubtful |= set(event.fields)
        if action.calls and action.calls[0].name == CALL:
            info = action.calls[0].arguments["auth_info"]
            given = frozenset(name for name, value in info.items() if value is not None)
            self._sent = (given, frozenset(info) - given)
        if outcome is not None and outcome.phone:
            self._hear(world, outcome)

    def _hear(self, world: World, outcome: Outcome) -> None:
        line = self.lines.setdefault(outcome.phone, LineKnowledge())
        key = (outcome.request_id, outcome.phone)
        match outcome.status:
            case "served":
                self.served.add(outcome.request_id)
            case "referred":
                self.referred.add(key)
            case "closed":
                self.opens[outcome.phone] = outcome.opens
            case "auth_mismatch":
                line.strikes += 1
                self.refused |= outcome.fields
            case "auth_missing":
                line.strikes += not outcome.is_probe or world.level.probe_is_strike
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
            given, offered = self._sent
            line.asked += 1
            line.kind = said.kind
            missing = frozenset(said.missing) - {REFERENCE}
            if missing or said.kind == "all":
                line.missing = missing | line.missing if said.kind == "first" else missing
                line.others = tuple(frozenset(other) - {REFERENCE} for other in said.others)
                line.sent = given - {REFERENCE}
            if said.is_enough:
                line.enough = given | offered


def _guesses(world: World, phone: str) -> list[str]:
    """Returns who may have to be called before a line that does not say so: general lines first."""
    order = ("customer_service", "billing")
    others = [line for line in world.company.departments if line.phone != phone and line.kind != "sales"]
    others.sort(key=lambda line: (order.index(line.kind) if line.kind in order else len(order), line.name))
    return [line.phone for line in others]
