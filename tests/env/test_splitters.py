"""Steps inside messages: they tile, what follows never moves them, each state can be continued from."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

from env.chat.coder import Coder
from env.chat.plain import PlainStyle
from env.play.continuations import SIBLING_SIZE, Continuations
from env.play.player import Player
from env.play.queue import play_unit
from env.play.requests import EpisodeRequest, PlaySettings
from env.play.units import Episodes
from env.protocol import Action, EnvSpec, Observation, StepResult
from env.splitters import SPLITTERS, token_spans
from pipeline.engines import GenerationRequest
from pipeline.engines.scripted import ScriptedEngine
from pipeline.models.tiny import train_tokenizer
from pipeline.steps import check_tiling, joined, state_tokens
from pipeline.types import Feedback, Message, Rollout, StepVerdict, Task, Verdict

STOP = "<|im_end|>"
TEXTS = st.text(alphabet="ab`!\n\r \té€🙂", max_size=60)
BY_NAME = pytest.mark.parametrize("name", list(SPLITTERS))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    texts = ["so a = b\n\n```\na!\nb € é\n```\n", "user: say\nA: noted 1\n", "🙂 b\n" * 3] * 5
    return train_tokenizer(texts, 320, tmp_path_factory.mktemp("tokenizer"), "")


class Notebook:
    """Notes three messages. A line with an exclamation mark is wrong, one with an equals sign is right."""

    spec = EnvSpec((), max_turns=3)

    def reset(self, task: Task, seed: int) -> Observation:
        self.messages: list[str] = []
        return Observation(task.prompt)

    def step(self, action: Action) -> StepResult:
        self.messages.append(action.text)
        reply: Message = {"role": "tool", "content": f"noted {len(self.messages)}"}
        return StepResult((reply,), truncated=len(self.messages) == 3)

    def verdict(self) -> Verdict:
        words = []
        for index, text in enumerate(self.messages):
            place = 0
            for line in text.splitlines(keepends=True):
                status: Any = "wrong" if "!" in line else "ok" if "=" in line else "unknown"
                if line.strip():
                    words.append(StepVerdict(index, status, line, "", place, place + len(line)))
                place += len(line)
        return Verdict(0.0, False, steps=tuple(words))

    def feedback(self) -> Feedback | None:
        return None

    def close(self) -> None:
        pass


def played(requests: list[EpisodeRequest], tokenizer: Any, reply: Any, splitter: str) -> list[Rollout]:
    settings = PlaySettings(1.0, 400, 8, "p", "tok", "style", splitter=splitter)
    engine, make_env = ScriptedEngine(reply, "p"), lambda _: Notebook()
    player = Player(engine, tokenizer, PlainStyle(), settings, make_env)
    return play_unit(Episodes(requests), player).rollouts


TASK = Task("t", "notebook", "train", 1, ({"role": "user", "content": "say"},), "rule", "x", "n", "c", 0)


def random_reply(tokenizer: Any) -> Any:
    """Returns an engine's replies: any tokens, halves of characters included, and many line ends."""
    stop = tokenizer.convert_tokens_to_ids(STOP)
    ends = tokenizer.encode("\n = ! ```", add_special_tokens=False)

    def reply(request: GenerationRequest) -> list[int]:
        rng = Random(request.seed)
        pool = [i for i in range(len(tokenizer)) if i != stop]
        return [rng.choice(ends if rng.random() < 0.5 else pool) for _ in range(rng.randrange(25))] + [stop]

    return reply


def parent_of(seed: int, tokenizer: Any, splitter: str) -> Rollout:
    request = EpisodeRequest("parent", TASK, "g", 0, 0, 0, seed=seed)
    [rollout] = played([request], tokenizer, random_reply(tokenizer), splitter)
    return rollout


@BY_NAME
@given(text=TEXTS, end=st.integers(0, 60))
def test_borders_follow_from_the_text_before_them(name: str, text: str, end: int) -> None:
    split = SPLITTERS[name]
    assert split(text[:end]) == [border for border in split(text) if border <= end]
    assert split(text) == sorted({border for border in split(text) if 0 < border <= len(text)})


@BY_NAME
@given(data=st.data())
@settings(max_examples=60)
def test_spans_tile_the_tokens_and_those_of_a_prefix_are_the_first_ones(
    tokenizer: Any, name: str, data: st.DataObject
) -> None:
    coder = Coder(tokenizer, STOP)
    ends = tokenizer.encode("\n\n```\n", add_special_tokens=False)
    token = st.one_of(st.integers(0, len(tokenizer) - 1), st.sampled_from(ends)).filter(
        lambda i: i != coder.stop_id
    )
    tokens = data.draw(st.lists(token, min_size=1, max_size=30))

    def spans(ids: list[int]) -> list[tuple[int, int]]:
        return token_spans(SPLITTERS[name](coder.message_text(ids)), coder.char_starts(ids))

    whole = spans(tokens)
    assert [i for first, end in whole for i in range(first, end)] == list(range(len(tokens)))
    assert all(first < end for first, end in whole)
    prefix = spans(tokens[: data.draw(st.integers(1, len(tokens)))])
    assert prefix[:-1] == whole[: len(prefix) - 1]
    assert prefix[-1][0] == whole[len(prefix) - 1][0]


def test_a_tokenizer_s_own_tokens_are_neither_put_in_nor_lost(tmp_path: Path) -> None:
    """Many a base begins every text with a token of its own unless it is told not to."""
    tokenizer = train_tokenizer(["a b"], 320, tmp_path, "", special_tokens=("<b>",))
    mark = tokenizer.convert_tokens_to_ids("<b>")
    begins = TemplateProcessing(single="<b> $A", special_tokens=[("<b>", mark)])
    tokenizer.backend_tokenizer.post_processor = begins
    coder = Coder(tokenizer, STOP)
    ids = coder.encode("a<b>b")
    assert tokenizer.encode("a<b>b") == [mark, *ids]
    assert coder.message_text(ids) == "a<b>b"
    assert coder.char_starts(ids) == [0, 1, 4]


def saying(tokens: tuple[int, ...]) -> Any:
    """Returns an engine's replies: those of an episode that is known."""
    return lambda request: list(tokens[len(request.prompt_token_ids) :])


@BY_NAME
@given(seed=st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
def test_every_state_can_be_continued_from_as_if_the_episode_were_sampled_in_one_go(
    tokenizer: Any, name: str, seed: int
) -> None:
    parent = parent_of(seed, tokenizer, name)
    check_tiling(parent)
    assert "".join(parent.message_texts) == "".join(step.text for step in parent.steps)
    assert parent.message_texts == tuple(
        message["content"] for message in parent.messages if message["role"] == "assistant"
    )
    requests = Continuations("k", 0, "x").of_all([parent], {"t": TASK}, 1)
    assert len(requests) == len(parent.steps) == len({request.seed for request in requests})
    for continuation in played(requests, tokenizer, saying(parent.token_ids), name):
        check_tiling(continuation)
        whole = joined(parent, continuation)
        ids = {"rollout_id": whole.rollout_id, "parent_rollout_ids": whole.parent_rollout_ids}
        assert whole == replace(parent, **ids)  # to the last verdict
    for continuation in played(requests, tokenizer, random_reply(tokenizer), name):
        start = continuation.start_step_index
        assert continuation.prompt_token_ids == state_tokens(parent, start)
        whole = joined(parent, continuation)
        check_tiling(whole)
        assert whole.steps[:start] == parent.steps[:start]
        with pytest.raises(ValueError, match="does not continue"):
            joined(replace(parent, prompt_token_ids=(0,)), continuation)
        in_one_go = EpisodeRequest("again", TASK, "g", 0, 0, 0, seed=seed)
        [again] = played([in_one_go], tokenizer, saying(whole.token_ids), name)
        # Verdicts before the state are the parent's own: they were given without what came after.
        assert [replace(s, verifier_status="unknown", verifier_code="") for s in again.steps] == [
            replace(s, verifier_status="unknown", verifier_code="") for s in whole.steps
        ]
        assert again.steps[start:] == whole.steps[start:]


def test_a_verdict_is_of_the_step_that_holds_its_first_character(tokenizer: Any) -> None:
    """A step with several is wrong if any is, and ok if one was checked and none is wrong."""
    text = "a = b\nb!\n\nno word\nb = !\n"
    ids = tokenizer.encode(text + STOP, add_special_tokens=False)
    request = EpisodeRequest("r", TASK, "g", 0, 0, 0, seed=0)
    [by_lines] = played([request], tokenizer, lambda _: ids, "lines")
    first = [step for step in by_lines.steps if step.message_index == 0]
    assert [(step.text, step.verifier_status, step.verifier_code) for step in first] == [
        ("a = b\n", "ok", "a = b\n"),
        ("b!\n\n", "wrong", "b!\n"),  # the token of both line ends straddles the border
        ("no word\n", "unknown", "no word\n"),
        ("b = !\n", "wrong", "b = !\n"),
        ("", "unknown", ""),  # that the message ends here was a choice as well
    ]
    [whole] = played([request], tokenizer, lambda _: ids, "message")
    assert [(step.verifier_status, step.verifier_code) for step in whole.steps] == [("wrong", "b!\n")] * 3


@BY_NAME
def test_siblings_are_distinct_steps_of_one_state_and_each_is_continued(tokenizer: Any, name: str) -> None:
    few, letters = Random(0), tokenizer.encode("a!\n", add_special_tokens=False)

    def reply(request: GenerationRequest) -> list[int]:  # few words, so that some siblings are equal
        return [few.choice(letters) for _ in range(few.randrange(4))] + [tokenizer.eos_token_id]

    continuations, num_siblings, num_kept, ids, states = Continuations("k", 0, "x"), 0, 0, [], set()
    for seed in range(6):
        parent = replace(parent_of(seed, tokenizer, name), rollout_id=f"p{seed}")
        siblings = played(continuations.siblings(parent, TASK, first_draw=7), tokenizer, reply, name)
        assert [r.draw for r in siblings] == [*range(7, 7 + SIBLING_SIZE)]
        assert {(r.kind, r.parent_rollout_ids) for r in siblings} == {("sibling", (parent.rollout_id,))}
        [(state, prompt)] = {(r.start_step_index, r.prompt_token_ids) for r in siblings}
        assert prompt == state_tokens(parent, state)
        states.add(state)
        asked = continuations.after_siblings(parent, reversed(siblings), TASK, 2)
        after = played(asked, tokenizer, reply, name)
        assert {r.kind for r in after} <= {"after_sibling"}
        steps = {r.rollout_id: r.response_token_ids[: r.steps[0].token_end] for r in siblings if r.steps[1:]}
        kept = {r.rollout_id: r for r in siblings if (r.rollout_id,) in {a.parent_rollout_ids for a in after}}
        assert len(kept) == (len(set(steps.values())) if len(set(steps.values())) > 1 else 0)
        for sibling in kept.values():
            whole = joined(parent, sibling)
            fresh = [r for r in after if r.parent_rollout_ids == (sibling.rollout_id,)]
            assert len(fresh) == 2
            for r in fresh:
                assert r.prompt_token_ids == state_tokens(whole, state + 1)
                check_tiling(joined(whole, r))
        ids += [r.rollout_id for r in (*siblings, *after)]
        num_siblings, num_kept = num_siblings + len(siblings), num_kept + len(kept)
    assert len(set(ids)) == len(ids)
    assert len(states) > 1
    assert 0 < num_kept < num_siblings


def test_a_rollout_of_another_splitter_is_not_continued(tokenizer: Any) -> None:
    ids = tokenizer.encode("a\nb\n" + STOP, add_special_tokens=False)
    [parent] = played([EpisodeRequest("r", TASK, "g", 0, 0, 0, seed=0)], tokenizer, lambda _: ids, "lines")
    request = Continuations("k", 0, "x").of(parent, 1, TASK, 1)
    with pytest.raises(ValueError, match="step 1 is none to the splitter 'message'"):
        played(request, tokenizer, lambda _: ids, "message")
