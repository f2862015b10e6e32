"""The player, with a counting environment whose every rule is visible here."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import islice
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from env.chat.plain import PlainStyle
from env.feedback_tool.calls import schema
from env.play.player import Player
from env.play.queue import play_in_one_queue, play_unit
from env.play.requests import EpisodeRequest, PlaySettings
from env.play.team import Here, OneQueue, Processes
from env.play.units import Course, Episodes, Played
from env.protocol import Action, EnvSpec, Observation, StepResult, ToolCall
from pipeline.engines import Engine, Generation, GenerationRequest
from pipeline.engines.scripted import ScriptedEngine
from pipeline.errors import ConfigError
from pipeline.models.tiny import train_tokenizer
from pipeline.steps import check_tiling
from pipeline.tables import rollouts_table
from pipeline.types import Event, Feedback, Message, Rollout, StepVerdict, Task, Verdict

STOP = "<|im_end|>"


class CountingEnv:
    """Count to the task's number: `add n` adds; more than the number is a fault; `done` ends."""

    def __init__(self, fails_in: str = "", failure: type[BaseException] = KeyError) -> None:
        self.spec = EnvSpec((), max_turns=6)
        self.fails_in, self.failure = fails_in, failure
        self.closed = 0

    def reset(self, task: Task, seed: int) -> Observation:
        self._fail("reset")
        self.goal = int(task.ground_truth)
        self.rng = Random(seed)
        self.count = 0
        self.words: list[StepVerdict] = []
        return Observation(task.prompt)

    def step(self, action: Action) -> StepResult:
        self._fail("step")
        turn = len(self.words)
        if action.status == "none":
            self.words.append(StepVerdict(turn, "unknown"))
            return StepResult((), terminated=True)
        step = action.calls[0].arguments["number"]
        if self.count + step > self.goal:
            self.words.append(StepVerdict(turn, "wrong", "too_much", f"{step} is too much"))
        else:
            self.count += step
            self.words.append(StepVerdict(turn, "ok"))
        reply: Message = {
            "role": "tool",
            "content": self.rng.choice(["now {}", "count {}"]).format(self.count),
        }
        return StepResult(
            (reply,),
            terminated=self.count == self.goal,
            truncated=self.count != self.goal and len(self.words) == self.spec.max_turns,
            events=(Event(self.words[-1].code or "added", turn),),
        )

    def verdict(self) -> Verdict:
        self._fail("verdict")
        success = self.count == self.goal
        return Verdict(float(success), success, cost=0.25, steps=tuple(self.words))

    def feedback(self) -> Feedback | None:
        self._fail("feedback")
        return Feedback(f"You stopped at {self.count}.", "counting")

    def close(self) -> None:
        self.closed += 1

    def _fail(self, where: str) -> None:
        if where == self.fails_in:
            raise self.failure(where)


class CountingStyle(PlainStyle):
    def parse(self, text: str) -> Action:
        if text.startswith("add "):
            return Action(text, "ok", (ToolCall("add", {"number": int(text[4:])}),))
        return Action(text, "none")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    texts = [f"U: count to {n}\nA: add {n}\nT: now {n} You stopped at {n}.\nA: done" for n in range(30)]
    return train_tokenizer(texts, 300, tmp_path_factory.mktemp("tokenizer"), "")


@dataclass
class Table:
    """Everything a player needs, with the scripted engine."""

    tokenizer: Any
    say: Callable[[str, int, int], str]  # (text so far, seed, turn) -> message
    fails_in: dict[str, str] = field(default_factory=dict)
    failure: type[BaseException] = KeyError
    requests: list[GenerationRequest] = field(default_factory=list)
    envs: list[CountingEnv] = field(default_factory=list)
    most_open: int = 0

    def engine(self, **options: Any) -> ScriptedEngine:
        def reply(request: GenerationRequest) -> list[int]:
            self.requests.append(request)
            text = self.tokenizer.decode(list(request.prompt_token_ids))
            turn = int(request.request_id.rpartition(":")[2])
            message = self.say(text, request.seed, turn) + STOP
            return list(self.tokenizer.encode(message, add_special_tokens=False))

        return ScriptedEngine(reply, "p", logprobs=lambda _, ids: [-0.5] * len(ids), **options)

    def make_env(self, task: Task) -> CountingEnv:
        self.envs.append(CountingEnv(self.fails_in.get(task.task_id, ""), self.failure))
        self.most_open = max(self.most_open, sum(not env.closed for env in self.envs))
        return self.envs[-1]

    def player(self, engine: Engine | None = None, **changes: Any) -> Player:
        settings = replace(PlaySettings(1.0, 200, 8, "p", "tok", "style"), **changes)
        return Player(engine or self.engine(), self.tokenizer, CountingStyle(), settings, self.make_env)

    def play(
        self,
        requests: Sequence[EpisodeRequest],
        engine: Engine | None = None,
        then: Any = lambda rollout: (),
        on_finish: Any = lambda rollout: None,
        **options: Any,
    ) -> list[Rollout]:
        unit: Any = SimpleNamespace(course=lambda player: Course(requests, then))
        return play_unit(unit, self.player(engine, **options), on_finish).rollouts


def saying(tokenizer: Any, *words: str) -> Table:
    """Returns a table at which the policy says these words in turn, the last one for ever."""
    return Table(tokenizer, lambda text, seed, turn: words[min(turn, len(words) - 1)])


def ask(name: str, goal: int = 5, **changes: Any) -> EpisodeRequest:
    prompt: tuple[Message, ...] = ({"role": "user", "content": f"count to {goal}"},)
    task = Task(f"task {name}", "counting", "train", 1, prompt, "rule", str(goal), "count", "c", 0)
    values: dict[str, Any] = {"group_id": "g", "iteration": 0, "attempt": 0, "draw": 0, "seed": 11} | changes
    return EpisodeRequest(name, task, **values)


def continue_(parent: Rollout, step_index: int, **changes: Any) -> EpisodeRequest:
    """Returns a request to continue task `r`."""
    of_parent = {"kind": "continuation", "parent": parent, "start_step_index": step_index}
    return replace(ask("r"), **{"rollout_id": "c"} | of_parent | changes)


def random_talk(text: str, seed: int, turn: int) -> str:
    return Random(f"{seed}:{text}").choice(["add 1", "add 2", "add 3", "done"])


MANY = [ask(f"r{i}", goal=3 + i % 4, seed=i) for i in range(20)]


def assert_consistent(rollout: Rollout, tokenizer: Any) -> None:
    assert len(rollout.loss_mask) == len(rollout.logprobs) == len(rollout.response_token_ids)
    check_tiling(rollout)
    for step in rollout.steps:
        text = tokenizer.decode(list(rollout.response_token_ids[step.token_start : step.token_end]))
        assert text.removesuffix(STOP) == step.text
    assert [value == 0.0 for value in rollout.logprobs] == [kept == 0 for kept in rollout.loss_mask]
    assert rollout.loss_mask[-1:] != (0,)


def test_a_solved_episode_is_kept_token_for_token(tokenizer: Any) -> None:
    table = saying(tokenizer, "add 2", "add 9", "add 3")
    (rollout,) = table.play([ask("r")])
    assert_consistent(rollout, tokenizer)
    contents = [message["content"] for message in rollout.messages]
    assert contents[1::2] == ["add 2", "add 9", "add 3"]
    text = tokenizer.decode([*rollout.prompt_token_ids, *rollout.response_token_ids])
    assert text == (
        f"U: count to 5{STOP}\nA: add 2{STOP}\nT: {contents[2]}{STOP}\nA: add 9{STOP}\n"
        f"T: {contents[4]}{STOP}\nA: add 3{STOP}"
    )
    assert (rollout.finish_reason, rollout.env_status) == ("success", "ok")
    assert (rollout.reward, rollout.cost) == (1.0, 0.25)
    assert [step.verifier_status for step in rollout.steps] == ["ok", "wrong", "ok"]
    assert [step.verifier_code for step in rollout.steps] == ["", "too_much", ""]
    assert [event.code for event in rollout.events] == ["added", "too_much", "added"]
    assert (rollout.feedback_text, rollout.guided) == ("", False)
    assert table.envs[0].closed == 1


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_the_next_prompt_is_the_last_one_plus_sampled_and_reply_ids(
    tokenizer: Any, temperature: float
) -> None:
    table = Table(tokenizer, random_talk)
    rollouts = table.play(MANY[:10], temperature=temperature)
    for rollout in rollouts:
        whole = (*rollout.prompt_token_ids, *rollout.response_token_ids)
        asked = [request for request in table.requests if request.cache_key == rollout.rollout_id]
        prompts = [tuple(request.prompt_token_ids) for request in asked]
        starts = [len(rollout.prompt_token_ids) + step.token_start for step in rollout.steps]
        assert prompts == [whole[:start] for start in starts]
        assert len({request.seed for request in asked}) == len(asked)
    assert {request.temperature for request in table.requests} == {temperature} == {rollouts[0].temperature}


@pytest.mark.parametrize(("reason", "words"), [("ended", ["add 1", "done"]), ("max_turns", ["add 9"] * 6)])
def test_a_failed_episode_says_why_and_carries_feedback(
    tokenizer: Any, reason: str, words: list[str]
) -> None:
    (rollout,) = saying(tokenizer, *words).play([ask("r")])
    assert_consistent(rollout, tokenizer)
    assert (rollout.finish_reason, rollout.reward) == (reason, 0.0)
    assert rollout.feedback_source == "counting"
    assert len(rollout.steps) == len(words)


def test_no_budget_is_ever_exceeded_and_a_cut_message_is_not_executed(tokenizer: Any) -> None:
    reasons = set()
    for budget in range(1, 90):
        (rollout,) = saying(tokenizer, "add 1").play([ask("r")], max_response_tokens=budget)
        assert_consistent(rollout, tokenizer)
        assert len(rollout.response_token_ids) <= budget
        assert rollout.reward == (1.0 if rollout.finish_reason == "success" else 0.0)
        whole = [step for step in rollout.steps if step.text == "add 1"]
        assert len(whole) - 1 <= len(rollout.events) <= len(whole)
        reasons.add(rollout.finish_reason)
    assert reasons == {"max_tokens", "success"}


@pytest.mark.parametrize("budget", [1, 2])
def test_the_last_token_of_a_budget_is_sampled(tokenizer: Any, budget: int) -> None:
    (rollout,) = saying(tokenizer, "add 1").play([ask("r")], max_response_tokens=budget)
    assert (len(rollout.response_token_ids), rollout.finish_reason) == (budget, "max_tokens")


def test_a_model_without_room_ends_the_episode_and_a_prompt_that_fills_it_is_a_failure(
    tokenizer: Any,
) -> None:
    table = saying(tokenizer, "add 1")
    size = len(tokenizer.encode(f"U: count to 5{STOP}\nA: "))
    (cut,) = table.play([ask("r")], table.engine(max_length=size + 12))
    assert_consistent(cut, tokenizer)
    assert (cut.finish_reason, cut.env_status, cut.reward) == ("max_tokens", "ok", 0.0)
    assert len(cut.response_token_ids) <= 12
    (full,) = table.play([ask("r")], table.engine(max_length=size))
    assert (full.finish_reason, full.env_status, full.reward) == ("failed", "prompt_too_long", None)
    assert full.steps == ()


def test_a_prompt_that_an_engine_was_not_started_for_is_a_failure_whatever_the_model_could_hold(
    tokenizer: Any,
) -> None:
    """vLLM holds rows of the budgets' size: a longer one would be refused in the middle of a stage."""
    table = saying(tokenizer, "add 1")
    size = len(tokenizer.encode(f"U: count to 5{STOP}\nA: "))
    statuses = []
    for room in (size + 40, size + 39):
        engine = table.engine()
        engine.room = room
        statuses += [r.env_status for r in table.play([ask("r")], engine, max_response_tokens=40)]
    assert statuses == ["ok", "prompt_too_long"]


@pytest.mark.parametrize(("failure", "said"), [(KeyError, "KeyError: '{}'"), (SystemExit, "SystemExit: {}")])
@pytest.mark.parametrize("place", ["reset", "step", "verdict", "feedback"])
def test_a_failing_environment_is_counted_and_never_a_reward_of_zero(
    tokenizer: Any, place: str, failure: type[BaseException], said: str
) -> None:
    """A grader that runs what a policy wrote may meet `exit()`: that ends the episode, and no stage."""
    table = Table(tokenizer, lambda text, seed, turn: "done", {"task bad": place}, failure)
    bad, good = table.play([ask("bad"), ask("good")])
    assert (bad.finish_reason, bad.env_status, bad.reward) == ("failed", "infra_error", None)
    assert bad.feedback_text == ""
    assert bad.events[-1].code == "infra_error"
    assert bad.events[-1].detail == f"{place}: {said.format(place)}"
    assert_consistent(bad, tokenizer)
    assert (good.env_status, good.reward) == ("ok", 0.0)
    assert all(env.closed == 1 for env in table.envs)


@pytest.mark.parametrize("failure", [ConfigError, KeyboardInterrupt])
@pytest.mark.parametrize("place", ["reset", "step", "verdict", "feedback"])
def test_a_machine_that_cannot_grade_or_who_ends_it_is_no_failure_of_an_episode_and_ends_the_stage(
    tokenizer: Any, place: str, failure: type[BaseException]
) -> None:
    table = Table(tokenizer, lambda text, seed, turn: "done", {"task bad": place}, failure)
    with pytest.raises(failure, match=place):
        table.play([ask("bad"), ask("good")])
    assert [env.closed for env in table.envs] == [1] * len(table.envs)


BAD = {
    "surrogate": ("step", {"messages": ({"role": "tool", "content": "x\ud800"},)}, "bad_reply"),
    "no text": ("step", {"messages": ({"role": "tool", "content": None},)}, "bad_reply"),
    "key": ("step", {"messages": ({"role": "tool", "content": "x", "name": "add"},)}, "bad_reply"),
    "role": ("step", {"messages": ({"role": "function", "content": "x"},)}, "bad_reply"),
    "event": ("step", {"events": (Event("x", 0, detail="\ud800"),)}, "bad_reply"),
    "text": ("step", {"messages": "again"}, "bad_reply"),
    "texts": ("step", {"messages": ("again",)}, "bad_reply"),
    "one": ("step", {"messages": {"role": "tool", "content": "x"}}, "bad_reply"),
    "events": ("step", {"events": ("x",)}, "bad_reply"),
    "fields": ("step", {"events": (Event("x", 0, fields="abc"),)}, "bad_reply"),  # type: ignore[arg-type]
    "turn": ("step", {"events": (Event("x", 2**31),)}, "bad_reply"),
    "end": ("step", {"terminated": "no"}, "bad_reply"),
    "error": ("step", {"infra_error": KeyError("x")}, "bad_reply"),
    "no error": ("step", {"infra_error": False}, "bad_reply"),
    "ok": ("step", {"infra_error": "ok"}, "infra_error"),
    "opening": ("reset", {"messages": ({"role": "user", "content": "x", "name": "Ann"},)}, "bad_reply"),
    "nan": ("verdict", {"reward": float("nan")}, "bad_verdict"),
    "above": ("verdict", {"reward": 5.0}, "bad_verdict"),
    "below": ("verdict", {"reward": -0.1}, "bad_verdict"),
    "null": ("verdict", {"reward": None, "success": None}, "bad_verdict"),
    "success": ("verdict", {"reward": 0.25, "success": "no"}, "bad_verdict"),
    "unsaid": ("verdict", {"success": None}, "bad_verdict"),
    "contradiction": ("verdict", {"reward": 0.0, "success": True}, "bad_verdict"),
    "steps": ("verdict", {"steps": None}, "bad_verdict"),
    "words": ("verdict", {"steps": ("ok",)}, "bad_verdict"),
    "cost": ("verdict", {"cost": float("inf")}, "bad_verdict"),
    "status": ("verdict", {"steps": (StepVerdict(0, "good"),)}, "bad_verdict"),  # type: ignore[arg-type]
    "code": ("verdict", {"steps": (StepVerdict(0, "ok", None),)}, "bad_verdict"),  # type: ignore[arg-type]
    "feedback": ("feedback", {"text": "\ud800"}, "bad_feedback"),
}


@pytest.mark.parametrize("how", BAD)
def test_what_an_environment_may_not_give_back_fails_its_item_and_not_the_stage(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    place, changes, code = BAD[how]
    honest = getattr(CountingEnv, place)
    monkeypatch.setattr(CountingEnv, place, lambda self, *args: replace(honest(self, *args), **changes))
    [bad] = saying(tokenizer, "add 1", "done").play([ask("bad")])
    assert (bad.finish_reason, bad.env_status, bad.reward) == ("failed", code, None)
    assert bad.events[-1].detail.startswith(f"{place}: ")
    assert_consistent(bad, tokenizer)
    assert rollouts_table([bad]).num_rows == 1  # it can be stored


@pytest.mark.parametrize("given", ["x", 0.5, {"reward": 1.0}, ((), 0.0, True, False, {}), None])
@pytest.mark.parametrize(
    ("place", "code", "allowed"),
    [
        ("reset", "bad_reply", "Observation"),
        ("step", "bad_reply", "StepResult"),
        ("verdict", "bad_verdict", "Verdict"),
        ("feedback", "bad_feedback", "Feedback, None"),
    ],
)
def test_what_other_interfaces_give_back_is_refused_in_words(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, place: str, code: str, allowed: str, given: Any
) -> None:
    monkeypatch.setattr(CountingEnv, place, lambda self, *args: given)
    [bad] = saying(tokenizer, "done").play([ask("bad")])
    if (place, given) == ("feedback", None):
        assert bad.env_status == "ok"
        return
    assert bad.env_status == code
    assert bad.events[-1].detail == f"{place}: it is a {type(given).__name__}; allowed: {allowed}"


@pytest.mark.parametrize("success", [True, np.True_])
def test_numbers_of_any_kind_can_be_stored(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, success: Any
) -> None:
    verdict = Verdict(Fraction(1, 4), success, cost=Fraction(1, 2))  # type: ignore[arg-type]
    monkeypatch.setattr(CountingEnv, "verdict", lambda self: verdict)
    rollouts = saying(tokenizer, "done").play([ask("r")])
    [row] = rollouts_table(rollouts).select(["reward", "cost", "finish_reason"]).to_pylist()
    assert row == {"reward": 0.25, "cost": 0.5, "finish_reason": "success"}


def test_a_reward_below_zero_is_one_where_calls_for_feedback_have_a_price(tokenizer: Any) -> None:
    def status(reward: float, *tools: Any) -> str:
        env = CountingEnv()
        env.spec = replace(env.spec, tools=tools)
        env.verdict = lambda: Verdict(reward, False)  # type: ignore[method-assign]
        player = replace(saying(tokenizer, "done").player(), make_env=lambda task: env)
        [rollout] = play_unit(Episodes([ask("r")]), player).rollouts
        return rollout.env_status

    assert (status(-0.25), status(-0.25, schema(True))) == ("bad_verdict", "ok")
    assert status(-0.26, schema(True)) == "bad_verdict"


def test_results_do_not_depend_on_how_the_engine_and_the_queue_interleave(tokenizer: Any) -> None:
    expected = Table(tokenizer, random_talk).play(MANY, max_live=50)
    assert {rollout.finish_reason for rollout in expected} >= {"success", "ended"}
    for max_live, per_collect in [(1, None), (3, 1), (7, 2), (50, 1)]:
        table = Table(tokenizer, random_talk)
        assert table.play(MANY, table.engine(max_per_collect=per_collect), max_live=max_live) == expected


def test_units_are_drawn_as_places_fall_free_and_come_back_in_order(tokenizer: Any) -> None:
    drawn: list[str] = []

    def many() -> Iterator[Episodes]:
        for i in range(100):
            names = [f"r{i}{letter}" for letter in "ab"[: i % 3]]  # none, one or two
            drawn.extend(names)
            yield Episodes([ask(name, seed=i) for name in names])

    table = Table(tokenizer, random_talk)
    ended: list[Rollout] = []
    player = table.player(table.engine(max_per_collect=1), max_live=3)
    units = play_in_one_queue(many(), player, ended.append)
    for i, played in enumerate(islice(units, 20)):
        assert [rollout.rollout_id for rollout in played.rollouts] == [n for n in drawn if n[1:-1] == str(i)]
        assert all(rollout.reward is not None for rollout in played.rollouts)
        assert len(drawn) <= len(ended) + 3 + 1
    assert table.most_open == 3
    units.close()
    assert all(env.closed == 1 for env in table.envs)


@pytest.mark.parametrize("in_parts", [True, False])
@pytest.mark.parametrize("kind", [Here, OneQueue])
def test_units_come_to_the_same_whole_in_parts_or_in_one_queue(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, kind: type[Here], in_parts: bool
) -> None:
    monkeypatch.setattr("env.play.team.PART_EPISODES", 3)
    table, ticks = Table(tokenizer, random_talk), list[int]()
    units = [Episodes(MANY[:7]), Episodes(MANY[7:9]), Episodes(MANY[9:])]
    hands = kind(lambda recipe: table.player(), lambda: None, in_parts=in_parts)
    found = list(hands.play([("recipe", unit) for unit in units], ticks.append))
    assert [played.rollouts for played in found] == [table.play(unit.requests) for unit in units]
    assert sum(ticks) == len(MANY)


@pytest.mark.parametrize(("episodes", "parts"), [(191, 1), (192, 2)])
def test_processes_get_a_unit_in_parts_of_about_128_episodes(episodes: int, parts: int) -> None:
    given: list[Any] = []

    def do(jobs: Iterable[Any], on_tick: Any) -> Iterator[Played]:
        for job in jobs:
            given.append(job)
            yield Played([], {})

    pool: Any = SimpleNamespace(do=do, close=lambda: None)
    unit = Episodes([ask(f"r{i}") for i in range(episodes)])
    with closing(Processes(pool)) as hands:
        assert list(hands.play([("recipe", unit)], lambda _: None)) == [Played([], {})]
    assert len(given) == parts


@pytest.mark.parametrize("in_parts", [True, False])
def test_who_plays_in_parts_computes_with_one_thread_as_a_process_does(
    tokenizer: Any, in_parts: bool
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        hands = Here(lambda recipe: saying(tokenizer).player(), lambda: None, in_parts=in_parts)
        [threads] = hands.do([("recipe", lambda player, on_finish: torch.get_num_threads())], lambda _: None)
        assert (threads, torch.get_num_threads()) == (1 if in_parts else 3, 3)
    finally:
        torch.set_num_threads(before)


def test_a_log_probability_that_is_not_finite_is_a_failure_of_the_engine(tokenizer: Any) -> None:
    table = saying(tokenizer, "add 1")
    engine = table.engine()
    answer = engine.collect

    def broken() -> list[Generation]:
        return [
            replace(generation, logprobs=[*generation.logprobs[:-1], float("nan")])
            if generation.request_id == "bad:1"
            else generation
            for generation in answer()
        ]

    engine.collect = broken  # type: ignore[assignment, method-assign]
    bad, good = table.play([ask("bad"), ask("good")], engine)
    assert (bad.env_status, bad.reward, bad.feedback_text) == ("bad_logprob", None, "")
    assert_consistent(bad, tokenizer)
    assert good.reward == 1.0


def test_follow_ups_are_played_at_once_and_listed_after_the_requests_parents_first(tokenizer: Any) -> None:
    finished: list[str] = []

    def next_attempts(rollout: Rollout) -> list[EpisodeRequest]:
        name, attempt = rollout.rollout_id, rollout.attempt + 1
        told = f"attempt {rollout.attempt}: {rollout.feedback_text}"
        lesson = {"attempt": attempt, "previous_attempts": (told,), "parent_rollout_ids": (name,)}
        return [ask(name + draw, **lesson) for draw in "xy"] if attempt < 3 else []

    rollouts = saying(tokenizer, "add 1", "done").play(
        [ask("a"), ask("b")],
        max_live=1,
        then=next_attempts,
        on_finish=lambda rollout: finished.append(rollout.rollout_id),
    )
    of_a, of_b = (f"{n} {n}x {n}y {n}xx {n}xy {n}yx {n}yy".split() for n in "ab")
    assert finished == of_a + of_b  # chains of one request before the next
    listed = [rollout.rollout_id for rollout in rollouts]
    assert listed == ["a", "b", *of_a[1:3], *of_b[1:3], *of_a[3:], *of_b[3:]]
    second = rollouts[2]
    assert (second.guided, second.parent_rollout_ids) == (True, ("a",))
    prompt = tokenizer.decode(list(second.prompt_token_ids))
    assert prompt == f"U: count to 5\nattempt 0: You stopped at 1.{STOP}\nA: "


def test_a_continuation_replays_its_parent_exactly_and_counts_on(tokenizer: Any) -> None:
    first = ask("r", previous_attempts=("You stopped at 0.",), feedback_in_context="0")
    (parent,) = saying(tokenizer, "add 1", "add 9", "add 1", "done").play([first])
    requests = [continue_(parent, k, rollout_id=f"k{k}", seed=99 + k, draw=k) for k in range(4)]
    continuations = saying(tokenizer, "add 5", "add 2", "add 2", "add 2", "add 1").play(requests)
    for k, rollout in enumerate(continuations):
        assert_consistent(rollout, tokenizer)
        start = parent.steps[k].token_start
        assert rollout.prompt_token_ids == (*parent.prompt_token_ids, *parent.response_token_ids[:start])
        assert rollout.start_step_index == k
        assert rollout.parent_rollout_ids == ("r",)
        assert (rollout.guided, rollout.feedback_in_context) == (True, "0")
        assert rollout.messages[: 1 + 2 * k] == parent.messages[: 1 + 2 * k]
        assert rollout.events[:k] == parent.events[:k]
        assert rollout.finish_reason == "success"
    assert [step.step_index for step in continuations[1].steps] == [1, 2]
    assert continuations[2].steps[0].verifier_status == "ok"  # the fault of step 1 stays where it was


def test_a_continuations_budget_counts_its_parents_part(tokenizer: Any) -> None:
    table = saying(tokenizer, "add 1")
    (parent,) = table.play([ask("r")], max_response_tokens=40)
    k = len(parent.steps) - 1
    start = parent.steps[k].token_start
    request = continue_(parent, k)
    (rollout,) = table.play([request], max_response_tokens=start + 2)
    assert (len(rollout.response_token_ids), rollout.finish_reason) == (2, "max_tokens")
    (rollout,) = table.play([request], max_response_tokens=start)
    assert (rollout.steps, rollout.finish_reason, rollout.env_status) == ((), "max_tokens", "ok")


def test_a_replay_that_goes_otherwise_is_a_counted_failure(tokenizer: Any) -> None:
    table = saying(tokenizer, "add 1")
    (parent,) = table.play([ask("r")])
    altered = [dict(message) for message in parent.messages]
    altered[2]["content"] = "now 4"
    (rollout,) = table.play([continue_(replace(parent, messages=tuple(altered)), 2)])
    assert (rollout.env_status, rollout.reward, rollout.steps) == ("replay_mismatch", None, ())
    request = continue_(parent, 3)
    over_there = replace(request, task=replace(request.task, ground_truth="3"))
    (rollout,) = table.play([over_there])  # the last reply is the same, but nothing follows it
    assert rollout.env_status == "replay_mismatch"
    assert "ended at message 2" in rollout.events[-1].detail


def test_what_cannot_be_played_is_refused(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = saying(tokenizer, "done")
    (parent,) = table.play([ask("r")])
    second = replace(parent, start_step_index=1)
    for request, message in (
        (continue_(parent, 1), "has steps 0 to 0"),
        (continue_(second, 0), "itself a continuation"),
        (continue_(replace(parent, tokenizer_digest="other"), 0), "written with tokenizer other"),
    ):
        with pytest.raises(ValueError, match=message):
            table.play([request])
    with pytest.raises(ValueError, match="asked for twice"):
        table.play([ask("r"), ask("r")])
    with pytest.raises(ValueError, match="load the weights"):
        table.play([ask("r")], policy_digest="other")
    monkeypatch.setattr(CountingStyle, "stop_token", "<|nobody_knows|>")
    with pytest.raises(ValueError, match="nobody_knows"):
        table.play([ask("r")])
