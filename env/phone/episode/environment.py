"""The phone environment: one customer, one company, and what the agent may do for the one with the other."""

from collections.abc import Sequence
from dataclasses import replace

from env.chat.neutral import tool_text
from env.phone.episode.calls import Outcome, Sent, State, place_call, submit_form, tick, wait
from env.phone.episode.feedback import Verbosity, rule_feedback
from env.phone.episode.rewards import RewardStyle, episode_cost, final_reward, potential
from env.phone.episode.speech import Speaker, event_detail
from env.phone.episode.tools import CALL, FORM, FROM_FORM, SEARCH, TOOLS, WAIT, tools_of
from env.phone.solver.solver import advice, step_verdicts
from env.phone.world import lexicon
from env.phone.world.levels import LEVELS, most_turns
from env.phone.world.world import World, WorldKey, make_world
from env.protocol import Action, EnvSpec, Observation, StepResult, ToolCall
from pipeline.types import Event, Feedback, Message, Task, Verdict

_Reply = tuple[str, list[Event]]
_Info = dict[str, str | bool | None]  # field -> value, `FROM_FORM`, or None for an offer


class PhoneEnv:
    """An episode in which an agent serves a customer by calling departments.

    The task fixes the world and the seed only wording and the references that lines give. So equal actions
    give equal event codes under any seed, unless they write a reference out instead of pointing to it.
    Success ends the episode at once, as does a message without a call. `world` is hidden from policies.
    """

    def __init__(self, verbosity: Verbosity = "observed", reward: RewardStyle = "terminal") -> None:
        self.spec = EnvSpec(TOOLS, most_turns(LEVELS))
        self.verbosity: Verbosity = verbosity
        self.reward_style: RewardStyle = reward
        self._task: Task | None = None

    def reset(self, task: Task, seed: int) -> Observation:
        """Starts an episode; raises ValueError where the task's ground truth is no key of a phone world."""
        self.world: World = make_world(WorldKey.from_text(task.ground_truth))
        self.state = State()
        self.events: list[Event] = []
        self.states = [self.state]  # before each message, and the last one
        self.outcome: Outcome | None = None  # what the last message came to, if it was a call or waited
        self._task = task
        self._speaker = Speaker(task.task_id, seed)
        self._call_id = ""
        self._infra_error: str | None = None
        level = self.world.level
        self.spec = replace(self.spec, max_turns=level.max_turns, tools=tools_of(level))
        return Observation(task.prompt)

    def step(self, action: Action) -> StepResult:
        """Plays one assistant message. Never raises on model output, only before `reset` or after the end."""
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

    @property
    def _success(self) -> bool:
        return len(self.state.served) == len(self.world.requests)

    def _step(self, action: Action) -> StepResult:
        before = self.state
        turn = before.tick
        self.outcome = None
        self.state = tick(before)
        messages: tuple[Message, ...] = ()
        if action.status == "none":
            events = [Event("none", turn)]
            self.state = replace(self.state, ended=True)
        else:
            if action.status == "ok":
                content, events = self._run(action.calls[0], turn)
            else:
                # What the parser says of the text is not a fact of the world, so it stays out of the event.
                content, events = self._parser(action.problem, action.status, turn)
            call_id = f"call_{turn}_0"
            messages = ({"role": "tool", "tool_call_id": call_id, "content": tool_text(content)},)
        if self._success:
            self.state = replace(self.state, ended=True)
        truncated = not self.state.ended and self.state.tick >= self.spec.max_turns
        if truncated:
            events.append(Event("max_turns", turn))
        self.events += events
        self.states.append(self.state)
        reward = final_reward(self.reward_style, self._success, self.events) if self.is_over else 0.0
        if self.reward_style == "ladder":
            reward += potential(self.world, self.state) - potential(self.world, before)
        return StepResult(messages, reward, self.state.ended, truncated, tuple(events))

    def _run(self, call: ToolCall, turn: int) -> _Reply:
        arguments = call.arguments
        if call.name == SEARCH:
            return self._search(str(arguments["company_name"]), turn)
        if call.name == FORM:
            return self._form(arguments["fields"], turn)
        if call.name == CALL:
            phone, request_id = str(arguments["phone_number"]), str(arguments["request"])
            return self._call(phone, request_id, arguments["auth_info"], turn)
        if call.name == WAIT and self.world.level.has_wait:
            return self._wait(str(arguments.get("call_id") or ""), turn)
        return self._parser("unknown tool", "unknown_tool", turn)

    def _parser(self, problem: str, status: str, turn: int) -> _Reply:
        return self._speaker.say("parser", problem=problem), [Event(status, turn)]

    def _search(self, name: str, turn: int) -> _Reply:
        company = self.world.company
        wanted = " ".join(name.split()).casefold()
        if wanted not in {company.name.casefold(), company.name.replace(" ", "").casefold()}:
            names = ", ".join(self._suggestions())
            return self._speaker.say("not_found", names=names), [Event("not_found", turn)]
        has_hours = self.world.level.has_wait
        lines = [
            " ".join([line.name, line.phone, *([line.hours] if has_hours else []), line.description])
            for line in company.departments
        ]
        self._speaker.random("order").shuffle(lines)
        text = self._speaker.say(
            "found", company=company.name, industry=company.industry, departments="; ".join(lines)
        )
        return text, [Event("found", turn, company.name)]

    def _suggestions(self) -> list[str]:
        """Returns the company and two that sound like it, so that a slip can be repaired."""
        first, second, third = self.world.company.name.split()
        rng = self._speaker.random("suggestions")
        names = [
            self.world.company.name,
            f"{first} {rng.choice([word for word in lexicon.SECOND_WORDS if word != second])} {third}",
            f"{rng.choice([word for word in lexicon.FIRST_WORDS if word != first])} {second} {third}",
        ]
        rng.shuffle(names)
        return names

    def _form(self, fields: Sequence[str], turn: int) -> _Reply:
        world, speaker = self.world, self._speaker
        self.state, code = submit_form(world, self.state, set(fields))
        if code != "form":
            return speaker.say(code, limit=world.level.max_form_fields), [Event(code, turn, FORM)]
        given = [field for field in fields if field in world.profile]
        lacking = [field for field in fields if field not in world.profile]
        events = [Event("form", turn, FORM, tuple(sorted(given)))]
        parts = []
        if given:
            values = ", ".join(self._value_text(field) for field in given)
            parts.append(speaker.say("form", values=values))
        if lacking:
            parts.append(speaker.say("unavailable", fields=", ".join(lacking)))
        doubtful = [field for field, _ in world.slips if field in given]
        extra = set(fields) - world.needed_fields()
        for code, some in (("unavailable", lacking), ("two_values", doubtful), ("over_collected", extra)):
            if some:
                events.append(Event(code, turn, FORM, tuple(sorted(some))))
        return "; ".join(parts), events

    def _value_text(self, field: str) -> str:
        """Returns a field with its value; with two where the customer is not sure, the wrong one first."""
        value = self.world.profile[field]
        wrong = dict(self.world.slips).get(field)
        if wrong is None:
            return f"{field} {value}"
        return self._speaker.say("either", field=field, first=wrong, second=value)

    def values_said(self, phone: str, request_id: str) -> dict[str, str]:
        """Returns field -> value of a bare name in a call: what the form said first, right or not.

        `reference` is what lets this request into this line, once another line has given it.
        """
        slips = dict(self.world.slips)
        said = {field: slips.get(field, self.world.profile[field]) for field in self.state.form or ()}
        line = self.world.department_at(phone)
        if line is not None and line.wants_reference:
            giver = next(other for other in self.world.company.departments if other.kind == line.after)
            if (request_id, giver.phone) in self.state.referred:
                said[lexicon.REFERENCE] = self._speaker.reference(request_id, giver.phone)
        return said

    def _sent(self, auth_info: _Info, phone: str, request_id: str) -> Sent:
        """Returns how each sent field stands to what this rollout's form and lines gave."""
        said = self.values_said(phone, request_id)
        right = {field: self.world.profile.get(field, value) for field, value in said.items()}
        references = {self._speaker.reference(*referred) for referred in self.state.referred}
        known = {*said.values(), *right.values(), *references}
        given, mismatched, fabricated, offered = set[str](), set[str](), set[str](), set[str]()
        for field, value in auth_info.items():
            value = said.get(field, "") if value is FROM_FORM else value
            if value is None:
                offered.add(field)
            elif value == right.get(field):
                given.add(field)
            else:
                (mismatched if value in known else fabricated).add(field)
        return Sent(*map(frozenset, (given, mismatched, fabricated, offered)))

    def _call(self, phone: str, request_id: str, auth_info: _Info, turn: int) -> _Reply:
        sent = self._sent(auth_info, phone, request_id)
        self.state, outcome = place_call(self.world, self.state, phone, request_id, sent)
        if outcome.status == "on_hold":
            self._call_id = f"h{turn}"
        return self._told(outcome, phone, turn)

    def _wait(self, call_id: str, turn: int) -> _Reply:
        held = self.state.held
        if call_id and (held is None or call_id != self._call_id):
            return self._speaker.say("nothing_to_wait_for"), [Event("nothing_to_wait_for", turn)]
        self.state, outcome = wait(self.world, self.state)
        if held is None:
            return self._speaker.say(outcome.status, now=self.state.tick), [Event(outcome.status, turn)]
        return self._told(outcome, held.phone, turn)

    def _told(self, outcome: Outcome, phone: str, turn: int) -> _Reply:
        """Returns what a line says, and the events of it."""
        self.outcome = outcome
        events = []
        if outcome.sent.is_probe and outcome.status != "on_hold":  # a held call is heard when it is taken
            events.append(Event("probe", turn, outcome.department, tuple(sorted(outcome.sent.offered))))
        if by := outcome.transferred_by:
            events.append(Event("wrong_department", turn, by, detail=f"passed on to {outcome.department}"))
        detail = event_detail(outcome, self.world)
        events.append(Event(outcome.status, turn, outcome.department, tuple(sorted(outcome.fields)), detail))
        # The line opens with its number, so that a reader of the log knows which call it answers.
        return f"{phone} {self._speaker.outcome(outcome, self.state.tick, self._call_id)}", events

    def verdict(self) -> Verdict:
        """Grades the episode as it stands: success, price, and a verdict on each message."""
        if self._infra_error is not None:
            return Verdict(None, None, infra_error=self._infra_error)
        steps = step_verdicts(self.world, self.states, self.events)
        reward = final_reward(self.reward_style, self._success, self.events)
        return Verdict(reward, self._success, episode_cost(self.events), steps)

    def feedback(self) -> Feedback | None:
        """Says what a failed episode's events teach; None after a success or an environment failure."""
        if self._infra_error is not None or self._success:
            return None
        return rule_feedback(self.events, self.verbosity, *advice(self.world))

    def close(self) -> None:
        """Ends the episode; there is nothing to free."""
        self._task = None
