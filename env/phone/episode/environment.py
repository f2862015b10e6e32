"""The phone environment: one customer, one company, and what the agent may do for the one with the other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from env.chat.neutral import tool_text
from env.phone.episode.calls import Held, Outcome, Sent, State, place_call, submit_form, tick, wait
from env.phone.episode.feedback import ENOUGH, NEXT, Verbosity, rule_feedback
from env.phone.episode.rewards import RewardStyle, episode_cost, final_reward, potential
from env.phone.episode.tools import CALL, FORM, FROM_FORM, SEARCH, TOOLS, WAIT, tools_of
from env.phone.solver.solver import advice, fewest_turns, step_verdicts
from env.phone.world import lexicon
from env.phone.world.levels import LEVELS, most_turns
from env.phone.world.lexicon import REFERENCE
from env.phone.world.rules import Disclosure, ordered
from env.phone.world.wording import PHRASES
from env.phone.world.world import World, WorldKey, make_world
from env.protocol import Action, EnvSpec, Observation, StepResult, ToolCall
from pipeline.ids import canonical_json
from pipeline.types import Event, Feedback, Message, Task, Verdict

_Reply = tuple[str, list[Event]]


class PhoneEnv:
    """An episode in which an agent serves a customer by calling departments.

    The task fixes the world and the seed only wording and the references that lines give. So equal actions
    give equal event codes under any seed, up to the references said: a message that writes one out, instead
    of pointing to it, makes it up under another seed. Success ends the episode at once, as does a message
    without a call.

    Attributes:
        spec: id, version, tools and turn limit.
        world: the task's world; hidden from policies.
        state: the abstract state, which the solver reads.
        events: everything that has happened.
        states: the abstract state before each message, and the last one.
        outcome: what the last message came to, if it was a call or waited for one.
    """

    def __init__(self, verbosity: Verbosity = "observed", reward: RewardStyle = "terminal") -> None:
        self.spec = EnvSpec("phone", 1, TOOLS, most_turns(LEVELS))
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
        self.outcome: Outcome | None = None
        self._call_id = ""
        self._turn_events: list[list[Event]] = []
        self._infra_error: str | None = None
        level = self.world.level
        self.spec = replace(self.spec, max_turns=level.max_turns, tools=tools_of(level))
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
        before = self.state
        self.outcome = None
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
        reward = final_reward(self.reward_style, self._success, self.events) if self.is_over else 0.0
        if self.reward_style == "ladder":
            reward += potential(self.world, self.state) - potential(self.world, before)
        return StepResult(messages, reward, self.state.ended, truncated, tuple(events))

    def _run(self, call: ToolCall, turn: int) -> _Reply:
        if call.name == SEARCH:
            return self._search(str(call.arguments["company_name"]), turn)
        if call.name == FORM:
            return self._form(call.arguments["fields"], turn)
        if call.name == CALL:
            return self._call(call, turn)
        if call.name == WAIT and self.world.level.has_wait:
            return self._wait(str(call.arguments.get("call_id") or ""), turn)
        return self._say("parser", problem="unknown tool"), [Event("unknown_tool", turn)]

    def _search(self, name: str, turn: int) -> _Reply:
        company = self.world.company
        wanted = " ".join(name.split()).casefold()
        if wanted not in {known.casefold() for known in (company.name, *company.aliases)}:
            return self._say("not_found", names=", ".join(self._suggestions())), [Event("not_found", turn)]
        shown = [
            (line.name, line.phone, *([line.hours] if self.world.level.has_wait else []), line.description)
            for line in company.departments
        ]
        lines = [" ".join(words) for words in shown]
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
            values = ", ".join(self._value_text(field) for field in given)
            parts.append(self._say("form", values=values))
        if lacking:
            parts.append(self._say("unavailable", fields=", ".join(lacking)))
            events.append(Event("unavailable", turn, FORM, tuple(sorted(lacking))))
        if doubtful := [field for field, _ in self.world.slips if field in given]:
            events.append(Event("two_values", turn, FORM, tuple(sorted(doubtful))))
        if extra := sorted(set(fields) - self.world.needed_fields()):
            events.append(Event("over_collected", turn, FORM, tuple(extra)))
        return "; ".join(parts), events

    def _value_text(self, field: str) -> str:
        """Returns a field with its value; with two where the customer is not sure, the wrong one first."""
        value = self.world.profile[field]
        wrong = dict(self.world.slips).get(field)
        if wrong is None:
            return f"{field} {value}"
        return self._say("either", field=field, first=wrong, second=value)

    def values_said(self, phone: str, request_id: str) -> dict[str, str]:
        """Returns what a bare name in a call stands for: field -> value.

        That is what the form said first, right or not; and as `reference` what lets this request into this
        line, once another line has given it.
        """
        slips = dict(self.world.slips)
        said = {field: slips.get(field, self.world.profile[field]) for field in self.state.form or ()}
        if (reference := self._reference_into(phone, request_id)) is not None:
            said[REFERENCE] = reference
        return said

    def _reference(self, request_id: str, phone: str) -> str:
        """Returns the reference that a line gives for a request; the seed decides it, like all wording."""
        assert self._task is not None
        rng = Random(f"{self._task.task_id}:{self._seed}:reference:{request_id} {phone}")
        return f"T{rng.randrange(10_000):04d}"

    def _sent(self, auth_info: dict[str, str | bool | None], phone: str, request_id: str) -> Sent:
        """Returns how each sent field stands to what this rollout's form and lines gave."""
        said = self.values_said(phone, request_id)
        right = {field: self.world.profile.get(field, value) for field, value in said.items()}
        references = {self._reference(*referred) for referred in self.state.referred}
        known = {*said.values(), *right.values(), *references}
        groups: dict[str, set[str]] = {
            "given": set(),
            "mismatched": set(),
            "fabricated": set(),
            "offered": set(),
        }
        for field, value in auth_info.items():
            if value is None:
                groups["offered"].add(field)
                continue
            value = said.get(field) if value is FROM_FORM else value
            if value is not None and value == right.get(field):
                groups["given"].add(field)
            elif value in known:
                groups["mismatched"].add(field)
            else:
                groups["fabricated"].add(field)
        return Sent(**{name: frozenset(fields) for name, fields in groups.items()})

    def _reference_into(self, phone: str, request_id: str) -> str | None:
        """Returns the reference that lets a request into a line, once another line has given it."""
        line = self.world.department_at(phone)
        if line is None or line.token is None:
            return None
        giver = next(other for other in self.world.company.departments if other.kind == line.after)
        if (request_id, giver.phone) not in self.state.referred:
            return None
        return self._reference(request_id, giver.phone)

    def _call(self, call: ToolCall, turn: int) -> _Reply:
        phone, request_id = str(call.arguments["phone_number"]), str(call.arguments["request"])
        sent = self._sent(call.arguments["auth_info"], phone, request_id)
        self.state, outcome = place_call(self.world, self.state, phone, request_id, sent)
        if outcome.status == "on_hold":
            self._call_id = f"h{turn}"
        return self._told(outcome, phone, sent, turn)

    def _wait(self, call_id: str, turn: int) -> _Reply:
        held = self.state.held
        if call_id and (held is None or call_id != self._call_id):
            return self._say("nothing_to_wait_for"), [Event("nothing_to_wait_for", turn)]
        self.state, outcome = wait(self.world, self.state)
        if held is None:
            return self._say(outcome.status, now=self.state.tick), [Event(outcome.status, turn)]
        return self._told(outcome, held.phone, held.sent, turn)

    def _told(self, outcome: Outcome, phone: str, sent: Sent, turn: int) -> _Reply:
        """Returns what a line says, and the events of it."""
        self.outcome = outcome
        events = []
        if outcome.is_probe and outcome.status != "on_hold":  # a held call is heard when it is taken
            events.append(Event("probe", turn, outcome.department, tuple(sorted(sent.offered))))
        if outcome.transferred:
            detail = f"passed on to {outcome.department}"
            events.append(Event("wrong_department", turn, outcome.called, detail=detail))
        detail = self._detail(outcome)
        events.append(Event(outcome.status, turn, outcome.department, tuple(sorted(outcome.fields)), detail))
        # The line opens with its number, so that a reader of the log knows which call it answers.
        return f"{phone} {self._call_text(outcome)}", events

    def _detail(self, outcome: Outcome) -> str:
        """Returns what an event says beside its code: who else, when, for what, or what else would do."""
        other = outcome.other_department
        match outcome.status:
            case "wrong_department" if other:
                return f"{other} serves it"
            case "must_call_first":
                first = [f"{other} comes first"] if other else []
                return "; ".join([*first, *_how(outcome.disclosure)])
            case "referred":
                return f"{outcome.request_id} on to {other}"
            case "served" if len(self.world.requests) > 1:
                return outcome.request_id
            case "closed":
                return f"opens at turn {outcome.opens}"
            case "auth_missing":
                others = "".join(" or " + ", ".join(fields) for fields in outcome.disclosure.others).strip()
                return others or "".join(_how(outcome.disclosure))
            case _:
                return ""

    def _call_text(self, outcome: Outcome) -> str:
        key = outcome.status
        if key in ("wrong_department", "must_call_first") and not outcome.other_department:
            key += "_vague"
        fields = ", ".join(ordered(outcome.fields))
        if key == "auth_missing":
            key, fields = _disclosed(outcome.disclosure)
        text = self._say(
            key,
            department=outcome.department,
            request=outcome.request_id,
            fields=fields,
            right=outcome.other_department,
            other=outcome.other_department,
            opens=outcome.opens,
            now=self.state.tick,
            call_id=self._call_id,
        )
        if outcome.status == "must_call_first" and outcome.disclosure.kind:
            key, fields = _disclosed(outcome.disclosure)
            if fields:
                text = f"{text}, {self._say('have_ready', fields=fields)}"
            elif key == "auth_enough":
                text = f"{text}; {self._say(key, department=outcome.department)}"
        if outcome.gives_reference:
            value = self._reference(outcome.request_id, outcome.phone)
            text = f"{text}, {self._say('reference', value=value)}"
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

    def verdict(self) -> Verdict:
        """Grades the episode as it stands: success, price, and a verdict on each message."""
        if self._infra_error is not None:
            return Verdict(None, None, infra_error=self._infra_error)
        steps = step_verdicts(self.world, self.states, self._turn_events)
        reward = final_reward(self.reward_style, self._success, self.events)
        return Verdict(reward, self._success, episode_cost(self.events), steps)

    def feedback(self) -> Feedback | None:
        """Says what a failed episode's events teach; None after a success or an environment failure."""
        if self._infra_error is not None or self._success:
            return None
        known = advice(self.world)
        return rule_feedback(self.events, self.verbosity, ordered(known.form), known.routes)

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
            "referred": sorted(map(list, state.referred)),
            "rung": sorted(state.rung),
            "held": None if state.held is None else [self._call_id, *_held_facts(state.held)],
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


def _how(said: Disclosure) -> list[str]:
    """Returns the word on how a line named fields, where feedback has to know: one at a time, or enough."""
    if said.is_enough:
        return [ENOUGH]
    return [NEXT] if said.kind == "first" else []


def _disclosed(said: Disclosure) -> tuple[str, str]:
    """Returns which phrase tells of a disclosure, and the fields it names as text."""
    if said.is_enough:
        return "auth_enough", ""
    if said.count is not None:
        return "auth_missing", f"{said.count} more"
    if not said.missing:
        return "auth_unnamed", ""
    fields = ", ".join(said.missing) + "".join(" or " + ", ".join(other) for other in said.others)
    return ("auth_first" if said.kind == "first" else "auth_missing"), fields


def _held_facts(held: Held) -> list[object]:
    sent = held.sent
    groups = (sent.given, sent.mismatched, sent.fabricated, sent.offered)
    return [held.phone, held.request_id, *map(sorted, groups)]
