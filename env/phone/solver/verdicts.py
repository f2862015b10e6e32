"""What the solver says of an episode: a verdict on each message, and what would have helped."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from env.phone.episode.calls import State
from env.phone.solver.solver import fewest_turns
from env.phone.world.rules import FieldSet, sufficient_forms
from env.phone.world.world import World
from pipeline.types import Event, StepVerdict, VerifierStatus

_ALWAYS_WRONG = {
    "fabricated_auth": "a value that the form did not give",
    "form_already_submitted": "a second form",
    "invalid_number": "no such number",
    "malformed_json": "malformed call",
    "unknown_tool": "malformed call",
    "bad_args": "malformed call",
    "too_many": "more than one call",
}
_ASIDES = {"probe", "over_collected", "unavailable", "two_values", "max_turns"}


@dataclass(frozen=True, slots=True)
class Advice:
    """What would have helped, without a value: privileged."""

    form: FieldSet  # the smallest that does for all lines; empty where none would
    routes: tuple[tuple[str, tuple[str, ...]], ...]  # (id, names of its lines in order) of referred requests


def advice(world: World) -> Advice:
    """Returns what would have helped."""
    rules = [line.sets for line in world.needed_lines()]
    forms = sufficient_forms(rules, world.profile.keys(), world.level.max_form_fields)
    paths = [(request.request_id, world.path(request)) for request in world.requests]
    routes = tuple((key, tuple(line.name for line in path)) for key, path in paths if len(path) > 1)
    return Advice(forms[0] if forms else frozenset(), routes)


def step_verdicts(
    world: World, states: Sequence[State], turn_events: Sequence[Sequence[Event]]
) -> tuple[StepVerdict, ...]:
    """Returns the word on each message, from the states before each and after the last, and its events.

    `wrong` if it was fatal (V* fell), made a value up, or was no valid call; `ok` if d* fell; else `unknown`.
    """
    turns = [fewest_turns(world, state) for state in states]
    can_succeed = [d <= world.level.max_turns - state.tick for d, state in zip(turns, states, strict=True)]
    verdicts = []
    for index, events in enumerate(turn_events):
        codes = [event.code for event in events]
        fault = next((code for code in codes if code in _ALWAYS_WRONG), None)
        if can_succeed[index] and not can_succeed[index + 1]:
            code, message = _fatal(codes, is_lost=turns[index + 1] == math.inf)
            verdicts.append(StepVerdict(index, "wrong", code, message))
        elif fault is not None:
            verdicts.append(StepVerdict(index, "wrong", fault, _ALWAYS_WRONG[fault]))
        else:
            status: VerifierStatus = "ok" if turns[index + 1] < turns[index] else "unknown"
            verdicts.append(StepVerdict(index, status, _main_code(codes)))
    return tuple(verdicts)


def _main_code(codes: Sequence[str]) -> str:
    """Returns the code that says how a message ended, past those that only add to it."""
    return [code for code in codes if code not in _ASIDES][-1]


def _fatal(codes: Sequence[str], is_lost: bool) -> tuple[str, str]:
    """Returns the code and the reason of a message that made success impossible."""
    if not is_lost:
        return "max_turns", "too few turns are left"
    if "form" in codes:
        return "form", "the one form lacks a needed field"
    if "none" in codes:
        return "none", "stopped before the request was served"
    return _main_code(codes), "the needed line is locked"
