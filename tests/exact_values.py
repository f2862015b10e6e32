"""Exact values of scripted phone policies, by enumeration: a truth that audits by continuations must find.

A policy here is a distribution over a few calls that depends on the abstract state alone: what the form
gave, what is served, who is locked, the turn. So V^pi is a finite sum, and equal states have equal values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from env.catalog import ENVIRONMENTS
from env.phone.environment import PhoneEnv
from env.phone.rules import ordered
from env.phone.tools import CALL, FORM, FROM_FORM, SEARCH
from env.protocol import Action, ToolCall
from pipeline.types import Task

STYLE = ENVIRONMENTS["phone"].style()
Choices = list[tuple[float, ToolCall | None]]
Policy = Callable[[PhoneEnv], Choices]


def _call(env: PhoneEnv, phone: str, fields: Sequence[str]) -> ToolCall:
    request = env.world.requests[0].request_id
    info: dict[str, str | None] = dict.fromkeys(fields, FROM_FORM)
    return ToolCall(CALL, {"phone_number": phone, "request": request, "auth_info": info})


def _moves(env: PhoneEnv) -> dict[str, ToolCall | None]:
    """Returns named moves of a state: good ones, wasteful ones, and ones that lose."""
    world, form = env.world, env.state.form
    line = world.server_of(world.requests[0])
    other = next(d for d in world.company.departments if d.phone != line.phone)
    needed = next(s for s in line.sets if s <= world.profile.keys())
    spare = [name for name in ordered(world.profile.keys()) if name not in needed]
    have = ordered(form or frozenset())
    return {
        "search": ToolCall(SEARCH, {"company_name": world.company.name}),
        "right form": ToolCall(FORM, {"fields": list(ordered(needed))}),
        "wrong form": ToolCall(FORM, {"fields": spare[:1] or list(ordered(needed))[:1]}),
        "right line": _call(env, line.phone, have),
        "other line": _call(env, other.phone, have),
        "stop": None,
    }


def _mixture(before: dict[str, float], after: dict[str, float]) -> Policy:
    def policy(env: PhoneEnv) -> Choices:
        moves = _moves(env)
        weights = before if env.state.form is None else after
        return [(share, moves[name]) for name, share in weights.items()]

    return policy


POLICIES: dict[str, Policy] = {
    "hasty": _mixture(
        {"search": 0.3, "right form": 0.3, "wrong form": 0.2, "right line": 0.1, "stop": 0.1},
        {"right line": 0.5, "other line": 0.2, "search": 0.2, "stop": 0.1},
    ),
    "slow": _mixture(
        {"search": 0.6, "right form": 0.25, "wrong form": 0.15},
        {"right line": 0.25, "other line": 0.25, "search": 0.5},
    ),
    "careless": _mixture(
        {"search": 0.2, "right form": 0.35, "wrong form": 0.35, "other line": 0.1},
        {"right line": 0.35, "other line": 0.35, "search": 0.2, "stop": 0.1},
    ),
}


@dataclass
class ExactValues:
    """V^pi of one task's states."""

    task: Task
    policy: Policy
    _known: dict[object, float] = field(default_factory=dict)

    def __call__(self, actions: Sequence[Action]) -> float:
        """Returns V^pi after these actions."""
        env = PhoneEnv()
        env.reset(self.task, 0)
        for action in actions:
            env.step(action)
        return self._value(env, list(actions))

    def _value(self, env: PhoneEnv, actions: list[Action]) -> float:
        if env.is_over:
            return float(len(env.state.served) == len(env.world.requests))
        if env.state not in self._known:
            value = 0.0
            for share, call in self.policy(env):
                action = STYLE.action_of(call)
                later = PhoneEnv()
                later.reset(self.task, 0)
                for earlier in (*actions, action):
                    later.step(earlier)
                value += share * self._value(later, [*actions, action])
            self._known[env.state] = value
        return self._known[env.state]


def draw(policy: Policy, env: PhoneEnv, rng: Random) -> Action:
    """Returns one message of the policy."""
    choices = policy(env)
    [call] = rng.choices([call for _, call in choices], [share for share, _ in choices])
    return STYLE.action_of(call)
