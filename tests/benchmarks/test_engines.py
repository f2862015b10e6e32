"""The pure parts of benchmarks/engines.py: what is cacheable, what drifted, what passes."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from benchmarks import engines
from benchmarks._measuring import judge
from pipeline.engines import Generation, GenerationRequest
from pipeline.engines.scripted import ScriptedEngine
from pipeline.types import Rollout, Step


def spread(median: float = 1.0) -> dict[str, float]:
    return {"median": median, "min": 0.9 * median, "max": 1.1 * median}


def agreement() -> dict[str, float]:
    return {"multi_turn_share": 0.8, "largest_gap": 1e-5, "drifted_tokens": 0, "turns_checked": 9}


GOOD: dict[str, Any] = {
    "agreement": {"transformers": agreement(), "vllm": agreement()},
    "greedy": {"requests": 10, "gaps_where_they_part": [1e-6]},
    "reuse": {name: {"share": 0.95} for name in engines.LATER},
    "single_turns": {"vllm / LLM.generate": spread(), "transformers / model.generate": spread()},
    "hand_off": {"memory / disk": spread(), "memory": spread(), "disk": spread()},
    "starts": {"after a kill": spread(10.0)},
}


def failed(path: str, value: Any) -> list[str]:
    results = copy.deepcopy(GOOD)
    *parents, name = path.split("|")
    place: Any = results
    for parent in parents:
        place = place[parent]
    place[name] = value
    return [criterion.split(":")[0] for criterion, met in judge(results, engines.CRITERIA).items() if not met]


@pytest.mark.parametrize(
    ("path", "value", "criterion"),
    [
        ("agreement|vllm|multi_turn_share", 0.4, "multi-turn"),
        ("agreement|transformers|largest_gap", 2e-4, "log-probabilities"),
        ("agreement|vllm|largest_gap", float("nan"), "log-probabilities"),
        ("agreement|vllm|drifted_tokens", 1, "drift"),
        ("agreement|vllm|turns_checked", 0, "drift"),
        ("greedy|gaps_where_they_part", [1e-6, 0.3], "greedy"),
        ("greedy|requests", 0, "greedy"),
        ("reuse|later turns|share", 0.89, "prefix cache"),
        ("reuse|later attempts|share", None, "prefix cache"),
        ("single_turns|vllm / LLM.generate|median", 0.8, "vLLM behind the queue"),
        ("single_turns|transformers / model.generate|median", 0.9, "transformers engine"),
        ("hand_off|memory / disk|median", 1.2, "hand-off"),
        ("hand_off|disk|median", 2.6, "hand-off"),
        ("starts|after a kill", {}, "hand-off"),
    ],
)
def test_each_criterion_fails_alone(path: str, value: Any, criterion: str) -> None:
    assert all(judge(GOOD, engines.CRITERIA).values())
    assert failed(path, value) == [criterion]


def test_cacheable_are_full_blocks_of_what_was_sent_but_for_the_last_token() -> None:
    sent = engines.SentPrefixes(block=4)
    sent.add(range(10))  # two blocks, and two tokens that fill none
    assert sent.cacheable(range(20)) == 8
    assert sent.cacheable(range(9)) == 8
    assert sent.cacheable(range(8)) == 4  # the last token is always computed, and with it its block
    assert sent.cacheable([0, 1, 2, 3, 4, 5, 99, 7, 8, 9]) == 4
    assert sent.cacheable([1, 2, 3, 4, 5]) == 0
    sent.add(range(12))
    assert sent.cacheable(range(20)) == 12


def test_the_recorder_counts_a_prompt_as_sent_at_once_and_an_answer_when_it_is_there() -> None:
    engine = ScriptedEngine(lambda request: [7, 8, 9, 1], max_per_collect=1)
    recorder = engines.Recorder(engine, engines.SentPrefixes(block=2))

    def ask(name: str, *prompt: int) -> GenerationRequest:
        return GenerationRequest(name, prompt, 0, 8, (1,), cache_key=name)

    recorder.submit([ask("a:0", 5, 6, 7), ask("b:0", 5, 6, 7)])
    assert recorder.cacheable == {"a:0": 0, "b:0": 2}
    (first,) = recorder.collect()
    assert recorder.generations == {"a:0": first}
    # All of the answer but its last token, whose keys and values nobody computes.
    recorder.submit([ask("a:1", 5, 6, 7, 7, 8, 9, 1, 3, 3)])
    assert recorder.cacheable["a:1"] == 6
    assert recorder.policy_digest == "scripted"


def test_requests_are_grouped_by_turn_and_attempt_and_excess_reuse_does_not_count() -> None:
    table = engines.reuse(
        {"x:0": 0, "x:1": 100, "y:0": 50, "y:2": 100},
        {"x:0": 32, "x:1": 90, "y:0": 64, "y:2": 64},
        {"x:0": 40, "x:1": 120, "y:0": 60, "y:2": 140},
        {"x": 0, "y": 1},
    )
    first = {"requests": 1, "prompt_tokens": 40, "cacheable": 0, "reused": 0, "share": None}
    assert table["first turns of first attempts"] == first
    assert table["later attempts"]["share"] == 1.0
    assert table["later turns"] == {
        "requests": 2,
        "prompt_tokens": 260,
        "cacheable": 200,
        "reused": 154,
        "share": 0.77,
    }


def played(row_change: dict[int, int]) -> tuple[int, int]:
    """Returns turns and drift of a rollout `1 2 | 3 4 | 5 6 | 7`: prompt, message, reply, message."""
    row = [1, 2, 3, 4, 5, 6, 7]
    steps = [
        Step(step_index=i, token_start=start, token_end=end, text="")
        for i, (start, end) in enumerate(((0, 2), (4, 5)))
    ]
    fields = dict.fromkeys(Rollout.__dataclass_fields__) | {"rollout_id": "r", "steps": tuple(steps)}
    fields |= {"prompt_token_ids": (1, 2), "response_token_ids": (3, 4, 5, 6, 7)}
    rollout = Rollout(**fields)  # type: ignore[arg-type]
    recorder = engines.Recorder(None)
    for name, prompt, answer in (("r:0", [1, 2], [3, 4]), ("r:1", [1, 2, 3, 4, 5, 6], [7])):
        recorder.requests[name] = GenerationRequest(name, prompt, 0, 4, ())
        recorder.generations[name] = Generation(name, answer, [0.0] * len(answer), "length")
    for place, token in row_change.items():
        row[place : place + 1] = [] if token < 0 else [token]
    return engines.drifted_tokens(rollout, row, recorder)


def test_a_row_that_is_what_the_engine_saw_has_not_drifted() -> None:
    assert played({}) == (2, 0)
    assert played({4: 99}) == (2, 1)  # the reply, which only the second turn saw
    assert played({0: 99}) == (2, 2)  # the prompt, which both turns saw
    assert played({6: -1})[1] > 0


def test_an_engine_s_questions_are_answered_by_what_the_recorder_wraps() -> None:
    recorder = engines.Recorder(ScriptedEngine(lambda request: [1]))
    found = engines.ask_all(recorder, [GenerationRequest(f"{i}", [2], i, 4, (1,)) for i in range(3)])
    assert sorted(found) == ["0", "1", "2"]
    assert recorder.cacheable == {}
