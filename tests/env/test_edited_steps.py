"""One step of an episode changed, token by token; `phone/test_probes.py` changes those of the phone."""

from dataclasses import replace
from typing import Any

import pytest

from env.chat.plain import PlainStyle
from env.offer import Edit
from env.play.edited_steps import changed_state
from env.protocol import Action, EnvSpec, Observation, StepResult
from pipeline.types import Feedback, Rollout, StepVerdict, Task, Verdict
from tests.env.test_chains import TASK
from tests.rollouts import rollout

STYLE = PlainStyle()
GOES_ON = StepResult(({"role": "tool", "content": "so"},))


class Scripted:
    """An environment that gives these results; the second message is wrong."""

    spec = EnvSpec((), max_turns=9)

    def __init__(self, *results: StepResult) -> None:
        self.results = list(results)

    def reset(self, task: Task, seed: int) -> Observation:
        return Observation(task.prompt)

    def step(self, action: Action) -> StepResult:
        return self.results.pop(0)

    def verdict(self) -> Verdict:
        return Verdict(0.0, False, steps=(StepVerdict(1, "wrong"),))

    def feedback(self) -> Feedback | None:
        return None

    def close(self) -> None:
        pass


class Letters:
    """A tokenizer of letters, which begins a text with a token of its own unless it is told not to."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [ord(letter) for letter in text]

    def convert_tokens_to_ids(self, token: str) -> int:
        return 0


def changed(*results: StepResult, max_length: int = 1000, **changes: Any) -> Rollout | None:
    """Returns the state after one message for each result, in place of the second of two."""
    edit = Edit("x", start=1, texts=("ab",) * len(results), compare=1)
    env, how = Scripted(GOES_ON, *results), {"style": STYLE, "tokenizer": Letters(), "max_length": max_length}
    return changed_state(rollout(**{"max_response_tokens": 1000} | changes), TASK, edit, env=env, **how)


def test_a_changed_message_is_followed_by_what_the_environment_says_of_it() -> None:
    state = changed(GOES_ON)
    assert state is not None
    reply = [ord(letter) for letter in STYLE.render_replies(GOES_ON.messages)]
    assert state.response_token_ids == (10, 11, 12, ord("a"), ord("b"), 0, *reply)
    assert not any((*state.loss_mask, *state.logprobs))  # nobody sampled it
    assert [step.verifier_status for step in state.steps] == ["unknown", "wrong", "unknown"]


@pytest.mark.parametrize(
    ("last", "is_state"),
    [
        ({}, True),
        ({"terminated": True}, True),
        ({"reward": 0.5}, False),
        ({"infra_error": "timeout"}, False),
        ({"truncated": True}, False),
    ],
)
def test_what_solves_breaks_or_is_cut_off_is_no_state_nor_what_ends_before_its_last_message(
    last: dict[str, Any], is_state: bool
) -> None:
    result = replace(GOES_ON, **last)
    assert (changed(result) is not None) == is_state
    assert (changed(GOES_ON, result) is not None) == is_state
    assert (changed(result, GOES_ON) is not None) == (not last)


def test_a_state_leaves_room_for_a_token() -> None:
    state = changed(GOES_ON)
    assert state is not None
    response, whole = len(state.response_token_ids), len(state.token_ids)
    assert changed(GOES_ON, max_response_tokens=response) is None
    assert changed(GOES_ON, max_response_tokens=response + 1) is not None
    assert changed(GOES_ON, max_length=whole) is None
    assert changed(GOES_ON, max_length=whole + 1) is not None
