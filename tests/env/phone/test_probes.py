"""Changed steps of phone episodes: legal, replayed by the environment, and doing what they are said to do."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from env.catalog import ENVIRONMENTS
from env.episodes import EpisodeRequest, PlaySettings, play
from env.phone.probes import FILLER, THANKS
from env.probing import Edit, changed_state
from pipeline.engines.scripted import ScriptedEngine
from pipeline.models import train_tokenizer
from pipeline.types import Rollout, Task

PHONE = ENVIRONMENTS["phone"]
STYLE = PHONE.style()
KINDS = {
    "filler",
    "duplicate",
    "split",
    "merge",
    "style",
    "empty_reply",
    "corrupted_step",
    "swapped_task",
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Rollout], dict[str, Task], Any]:
    """Rollouts of the scripted agent on training tasks of both levels, and the tokenizer."""
    tasks = PHONE.generate_tasks(num_companies=12, num_train=24, num_val=4, num_test=4)[:24]
    texts = [STYLE.render_prompt(task.prompt, ()) for task in tasks]
    tokenizer = train_tokenizer(texts, 400, tmp_path_factory.mktemp("tokenizer"), "")

    def reply(request: Any) -> list[int]:
        prompt = tokenizer.decode(list(request.prompt_token_ids), skip_special_tokens=False)
        text = PHONE.scripted_reply(prompt, Random(request.seed))
        return list(tokenizer.encode(text + STYLE.stop_token, add_special_tokens=False))

    engine = ScriptedEngine(reply, "agent", max_length=4096)
    requests = [EpisodeRequest(f"r{i}", task, f"g{i}", 0, 0, 0, seed=100 + i) for i, task in enumerate(tasks)]
    rollouts = play(
        requests,
        make_env=lambda task: PHONE.make_env(),
        style=STYLE,
        tokenizer=tokenizer,
        engine=engine,
        settings=PlaySettings(1.0, 2048, 8, "agent", "tok", STYLE.digest),
    )
    return rollouts, {task.task_id: task for task in tasks}, tokenizer


def changed(played: Any, rollout: Rollout, edit: Edit, **options: Any) -> Rollout | None:
    _, tasks, tokenizer = played
    env = PHONE.make_env()
    arguments = {"env": env, "style": STYLE, "tokenizer": tokenizer, "max_length": 4096} | options
    return changed_state(rollout, tasks[rollout.task_id], edit, **arguments)


def all_edits(played: Any) -> list[tuple[Rollout, Edit]]:
    rollouts, tasks, _ = played
    return [(r, edit) for r in rollouts for edit in PHONE.probe_edits(r.steps, tasks[r.task_id].level, STYLE)]


def test_every_kind_of_change_occurs_and_compares_states_before_the_last_step(played: Any) -> None:
    edits = all_edits(played)
    assert {edit.kind for _, edit in edits} == KINDS
    assert all(edit.compare < len(rollout.steps) for rollout, edit in edits)


def test_a_changed_state_is_a_state_of_the_changed_episode(played: Any) -> None:
    """The original up to the change, then the new message and the environment's reply."""
    tokenizer = played[2]
    seen = set()
    for rollout, edit in all_edits(played):
        state = changed(played, rollout, edit, other_prompt=(1, 2, 3))
        if state is None:
            continue
        seen.add(edit.kind)
        text = tokenizer.decode(list(state.response_token_ids), skip_special_tokens=False)
        before = rollout.response_token_ids[: rollout.steps[edit.start].token_start]
        assert state.response_token_ids[: len(before)] == before
        for message in edit.texts:
            assert f"{message}{STYLE.stop_token}" in text
        assert text.endswith("\nA: ") or not text
        assert state.prompt_token_ids == ((1, 2, 3) if edit.other_prompt else rollout.prompt_token_ids)
        [step] = state.steps
        assert (step.token_start, step.step_index) == (
            len(state.response_token_ids),
            edit.start + len(edit.texts),
        )
    assert seen == KINDS


def test_words_before_a_call_change_nothing_that_happens(played: Any) -> None:
    for rollout, edit in all_edits(played):
        if edit.kind == "filler":
            state = changed(played, rollout, edit)
            assert state is not None
            words = played[2].encode(f"{FILLER}\n", add_special_tokens=False)
            original = rollout.steps[edit.compare].token_start
            # The pieces may join at the seam; the world's reply is the same.
            assert abs(len(state.response_token_ids) - original - len(words)) <= 2


def test_two_calls_in_one_message_do_not_run_and_thanks_is_no_call(played: Any) -> None:
    for _rollout, edit in all_edits(played):
        if edit.kind == "merge":
            assert STYLE.parse(edit.texts[0]).status == "too_many"
        if edit.kind == "empty_reply":
            assert STYLE.parse(edit.texts[0]).status == (
                "unknown_tool" if edit.texts[0] == THANKS else "none"
            )


def test_a_corrupted_right_step_loses_what_the_right_one_gained(played: Any) -> None:
    _rollouts, tasks, _ = played
    found = 0
    for rollout, edit in all_edits(played):
        if edit.kind != "corrupted_step":
            continue
        task = tasks[rollout.task_id]
        kept = [STYLE.parse(step.text) for step in rollout.steps[: edit.start]]
        turns = []
        for text in (rollout.steps[edit.start].text, edit.texts[0]):
            env = PHONE.make_env()
            env.reset(task, rollout.seed)
            for action in (*kept, STYLE.parse(text)):
                assert env.step(action).infra_error is None
            turns.append(env.turns_to_success)
        assert turns[1] > turns[0]
        found += 1
    assert found >= 3


def test_what_does_not_fit_or_does_something_else_is_left_out(played: Any) -> None:
    rollout, edit = next((r, e) for r, e in all_edits(played) if e.kind == "filler")
    assert changed(played, rollout, edit, max_length=len(rollout.prompt_token_ids) + 5) is None
    other = Edit("filler", edit.start, ("form email",), edit.compare, same_events=True)
    assert changed(played, rollout, other) is None
