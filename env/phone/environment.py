"""The phone environment: one customer, one company, three tools."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Literal

from env.chat.neutral import tool_text
from env.feedback.rules import Verbosity, rule_feedback
from env.phone import lexicon
from env.phone.calls import Outcome, Sent, State, place_call, submit_form, tick
from env.phone.levels import COSTS, MAX_PRICE, MAX_TURNS, OVER_COLLECTED_CAP
from env.phone.rules import ordered
from env.phone.solver import fewest_turns, step_verdicts
from env.phone.tools import CALL, FORM, FROM_FORM, SEARCH, TOOLS
from env.phone.wording import PHRASES
from env.phone.world import World, WorldKey, make_world
from env.protocol import Action, EnvSpec, Observation, StepResult, ToolCall
from pipeline.ids import canonical_json
from pipeline.types import Event, Feedback, Message, Task, Verdict

RewardStyle = Literal["terminal", "priced"]

_Reply = tuple[str, list[Event]]


class PhoneEnv:
    """An episode in which an agent serves a customer by calling departments.

    The task fixes the world and the seed only wording, so equal actions give equal event codes under any
    seed. Success ends the episode at once, as does a message without a call.

    Attributes:
        spec: id, version, tools and turn limit.
        world: the task's world; hidden from policies.
        state: the abstract state, which the solver reads.
        events: everything that has happened.
        states: the abstract state before each message, and the last one.
    """

    def __init__(self, verbosity: Verbosity = "observed", reward: RewardStyle = "terminal") -> None:
        self.spec = EnvSpec("phone", 1, TOOLS, MAX_TURNS)
        self.verbosity: Verbosity = verbosity
        self.reward_style: RewardStyle = reward
        self._task: Task | None = None

    def reset(self, task: Task, seed: int) -> Observation:
        """Starts an episode.

        Raises:
            ValueError: the task's ground truth is no key of a phone world.
        """
        self.world: World = make_world(WorldKey.from_text(task.ground_truth))
        self.state = State()
        self.events: list[Event] = []
        self._task = task
        self._seed = seed
        self._counter = 0
        self.states = [self.state]
        self._turn_events: list[list[Event]] = []
        self._infra_error: str | None = None
        self.spec = replace(self.spec, max_turns=self.world.level.max_turns)
        return Observation(task.prompt)

    def step(self, action: Action) -> StepResult:
        """Plays one assistant message. Never raises on model output.

        Raises:
            RuntimeError: there is no episode, or it is over; a defect of the caller.
        """
        if self._task is None or self.is_over:
            raise RuntimeError("PhoneEnv.step after the end or before reset; call reset(task, seed) first")
        try:
            return self._step(action)
        except Exception as error:  # a defect of the environment is never the policy's failure
            self._infra_error = f"{type(error).__name__}: {error}"[:200]
            return StepResult((), infra_error=self._infra_error)

    @property
    def is_over(self) -> bool:
        """Whether the episode takes no more messages."""
        return self.state.ended or self.state.tick >= self.spec.max_turns or self._infra_error is not None

    def _step(self, action: Action) -> StepResult:
        turn = self.state.tick
        self.state = tick(self.state)
        messages: tuple[Message, ...] = ()
        if action.status == "none":
            events = [Event("none", turn)]
            self.state = replace(self.state, ended=True)
        else:
            if action.status == "ok":
                content, events = self._run(action.calls[0], turn)
            else:
                # What the parser says of the text is not a fact of the world, so it stays out of the event.
                content, events = self._say("parser", problem=action.problem), [Event(action.status, turn)]
            call_id = f"call_{turn}_0"
            messages = ({"role": "tool", "tool_call_id": call_id, "content": tool_text(content)},)
        if self._success:
            self.state = replace(self.state, ended=True)
        truncated = not self.state.ended and self.state.tick >= self.spec.max_turns
        if truncated:
            events.append(Event("max_turns", turn))
        self.events += events
        self._turn_events.append(events)
        self.states.append(self.state)
        reward = self._reward() if self.is_over else 0.0
        return StepResult(messages, reward, self.state.ended, truncated, tuple(events))

    def _run(self, call: ToolCall, turn: int) -> _Reply:
        if call.name == SEARCH:
            return self._search(str(call.arguments["company_name"]), turn)
        if call.name == FORM:
            return self._form(call.arguments["fields"], turn)
        if call.name == CALL:
            return self._call(call, turn)
        return self._say("parser", problem="unknown tool"), [Event("unknown_tool", turn)]

    def _search(self, name: str, turn: int) -> _Reply:
        company = self.world.company
        wanted = " ".join(name.split()).casefold()
        if wanted not in {known.casefold() for known in (company.name, *company.aliases)}:
            return self._say("not_found", names=", ".join(self._suggestions())), [Event("not_found", turn)]
        lines = [f"{line.name} {line.phone} {line.description}" for line in company.departments]
        self._random("order").shuffle(lines)
        text = self._say(
            "found", company=company.name, industry=company.industry, departments="; ".join(lines)
        )
        return text, [Event("found", turn, company.name)]

    def _suggestions(self) -> list[str]:
        """Returns the company and two that sound like it, so that a slip can be repaired."""
        first, second, third = self.world.company.name.split()
        rng = self._random("suggestions")
        names = [
            self.world.company.name,
            f"{first} {rng.choice([word for word in lexicon.SECOND_WORDS if word != second])} {third}",
            f"{rng.choice([word for word in lexicon.FIRST_WORDS if word != first])} {second} {third}",
        ]
        rng.shuffle(names)
        return names

    def _form(self, fields: Sequence[str], turn: int) -> _Reply:
        self.state, code = submit_form(self.world, self.state, set(fields))
        if code != "form":
            return self._say(code, limit=self.world.level.max_form_fields), [Event(code, turn, FORM)]
        given = [field for field in fields if field in self.world.profile]
        lacking = [field for field in fields if field not in self.world.profile]
        events = [Event("form", turn, FORM, tuple(sorted(given)))]
        parts = []
        if given:
            values = ", ".join(f"{field} {self.world.profile[field]}" for field in given)
            parts.append(self._say("form", values=values))
        if lacking:
            parts.append(self._say("unavailable", fields=", ".join(lacking)))
            events.append(Event("unavailable", turn, FORM, tuple(sorted(lacking))))
        if extra := sorted(set(fields) - self.world.needed_fields()):
            events.append(Event("over_collected", turn, FORM, tuple(extra)))
        return "; ".join(parts), events

    def _sent(self, auth_info: dict[str, str | None]) -> Sent:
        """Returns how each sent field stands to what this rollout's form gave."""
        form = self.state.form or frozenset()
        values = {field: self.world.profile[field] for field in form}
        groups: dict[str, set[str]] = {
            "given": set(),
            "mismatched": set(),
            "fabricated": set(),
            "offered": set(),
        }
        for field, value in auth_info.items():
            if value is None:
                groups["offered"].add(field)
            elif field in values and value in (FROM_FORM, values[field]):
                groups["given"].add(field)
            elif value in values.values():
                groups["mismatched"].add(field)
            else:
                groups["fabricated"].add(field)
        return Sent(**{name: frozenset(fields) for name, fields in groups.items()})

    def _call(self, call: ToolCall, turn: int) -> _Reply:
        arguments = call.arguments
        sent = self._sent(arguments["auth_info"])
        self.state, outcome = place_call(
            self.world, self.state, str(arguments["phone_number"]), str(arguments["request"]), sent
        )
        events = []
        if outcome.is_probe:
            events.append(Event("probe", turn, outcome.department, tuple(sorted(sent.offered))))
        if outcome.transferred:
            detail = f"passed on to {outcome.department}"
            events.append(Event("wrong_department", turn, outcome.called, detail=detail))
        detail = f"{outcome.right_department} serves it" if outcome.right_department else ""
        events.append(Event(outcome.status, turn, outcome.department, tuple(sorted(outcome.fields)), detail))
        # The line opens with its number, so that a reader of the log knows which call it answers.
        return f"{arguments['phone_number']} {self._call_text(outcome, str(arguments['request']))}", events

    def _call_text(self, outcome: Outcome, request_id: str) -> str:
        said = outcome.disclosure
        key = outcome.status
        fields = ", ".join(ordered(outcome.fields))
        if key == "auth_missing":
            if said.count is not None:
                fields = f"{said.count} more"
            elif not said.missing:
                key = "auth_unnamed"
            fields += "".join(" or " + ", ".join(other) for other in said.others)
        text = self._say(
            key,
            department=outcome.department,
            request=request_id,
            fields=fields,
            right=outcome.right_department,
        )
        if outcome.transferred:
            text = f"{self._say('transferred', department=outcome.department)} {text}"
        return text

    def _random(self, purpose: str) -> Random:
        assert self._task is not None
        self._counter += 1
        return Random(f"{self._task.task_id}:{self._seed}:{purpose}:{self._counter}")

    def _say(self, key: str, **words: object) -> str:
        return self._random(key).choice(PHRASES[key]).format(**words)

    @property
    def _success(self) -> bool:
        return len(self.state.served) == len(self.world.requests)

    def _reward(self) -> float:
        if not self._success:
            return 0.0
        return 1.0 if self.reward_style == "terminal" else 1.0 - min(episode_cost(self.events), MAX_PRICE)

    def verdict(self) -> Verdict:
        """Grades the episode as it stands: success, price, and a verdict on each message."""
        if self._infra_error is not None:
            return Verdict(None, None, infra_error=self._infra_error)
        steps = step_verdicts(self.world, self.states, self._turn_events)
        first_error = next((step.index for step in steps if step.status == "wrong"), None)
        return Verdict(self._reward(), self._success, episode_cost(self.events), steps, first_error)

    def feedback(self) -> Feedback | None:
        """Says what a failed episode's events teach; None after a success or an environment failure."""
        if self._infra_error is not None or self._success:
            return None
        needed = ordered(self.world.needed_fields())
        return rule_feedback(self.events, self.verbosity, needed)

    def state_digest(self) -> str:
        """Returns the SHA-256 of the state's canonical JSON."""
        assert self._task is not None
        state = self.state
        value = {
            "task": self._task.task_id,
            "seed": self._seed,
            "counter": self._counter,
            "form": None if state.form is None else sorted(state.form),
            "served": sorted(state.served),
            "strikes": [list(pair) for pair in state.strikes],
            "tick": state.tick,
            "ended": state.ended,
            "events": [[e.code, e.turn, e.target, list(e.fields), e.detail] for e in self.events],
        }
        return hashlib.sha256(canonical_json(value).encode()).hexdigest()

    @property
    def turns_to_success(self) -> float:
        """d*: the least messages to success from here, infinite when there is no way."""
        return fewest_turns(self.world, self.state)

    def close(self) -> None:
        """Ends the episode; there is nothing to free."""
        self._task = None


def episode_cost(events: Sequence[Event]) -> float:
    """Returns the price of an episode's faults and probes, from its events alone; >= 0."""
    probes = {event.turn for event in events if event.code == "probe"}
    cost = 0.0
    extra = 0
    for event in events:
        if event.code == "over_collected":
            extra += len(event.fields)
        elif event.code == "auth_mismatch" or (event.code == "auth_missing" and event.turn not in probes):
            cost += COSTS["strike"]
        else:
            cost += COSTS.get(event.code, 0.0)
    return round(cost + min(extra * COSTS["over_collected"], OVER_COLLECTED_CAP), 6)
