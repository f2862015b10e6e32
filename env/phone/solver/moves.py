"""Messages as the solver sees them: abstract moves, what they do to a state, what calls they stand for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from env.phone.episode.calls import Sent, State, place_call, submit_form, tick, wait
from env.phone.episode.tools import CALL, FORM, FROM_FORM, SEARCH, WAIT
from env.phone.world.rules import ordered
from env.phone.world.world import World
from env.protocol import ToolCall


@dataclass(frozen=True, slots=True)
class Move:
    """One message.

    Attributes:
        kind: what it does; "search" stands for any message that only lets a tick pass.
        fields: asked for in a form; given in a call, with their right values.
        phone: number called.
        request_id: what the call is for.
        offered: fields that a call offers.
    """

    kind: Literal["search", "form", "call", "wait", "stop"]
    fields: frozenset[str] = frozenset()
    phone: str = ""
    request_id: str = ""
    offered: frozenset[str] = frozenset()


def play(world: World, state: State, move: Move) -> State:
    """Returns the state after a move: a pure function, what `PhoneEnv` makes of the same message."""
    state = tick(state)
    match move.kind:
        case "form":
            state = submit_form(world, state, move.fields)[0]
        case "call":
            sent = Sent(given=move.fields, offered=move.offered)
            state = place_call(world, state, move.phone, move.request_id, sent)[0]
        case "wait":
            state = wait(world, state)[0]
        case "stop":
            state = replace(state, ended=True)
    return replace(state, ended=True) if len(state.served) == len(world.requests) else state


def tool_call(world: World, move: Move) -> ToolCall | None:
    """Returns the call that a move stands for; None stops."""
    match move.kind:
        case "search":
            return ToolCall(SEARCH, {"company_name": world.company.name})
        case "form":
            return ToolCall(FORM, {"fields": list(ordered(move.fields))})
        case "call":
            slips = dict(world.slips)
            info: dict[str, str | bool | None] = {
                field: world.profile[field] if field in slips else FROM_FORM for field in ordered(move.fields)
            }
            info |= dict.fromkeys(ordered(move.offered))
            return ToolCall(CALL, {"phone_number": move.phone, "request": move.request_id, "auth_info": info})
        case "wait":
            return ToolCall(WAIT, {})
        case _:
            return None
