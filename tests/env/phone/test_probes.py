"""Changed steps of phone episodes: legal, replayed by the environment, and doing what they are said to do."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from env.phone.episode.edits import FILLER, THANKS
from env.phone.offer import PHONE
from env.phone.world.tasks import generate_tasks
from env.play.edited_steps import Edit, changed_state
from env.play.queue import play
from env.play.requests import EpisodeRequest, PlaySettings
from pipeline.engines.scripted import ScriptedEngine
from pipeline.models.tiny import train_tokenizer
from pipeline.types import Rollout, Task

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
    tasks = generate_tasks(num_companies=12, num_train=24, num_val=4, num_test=4)[:24]
    texts = [STYLE.render_prompt(task.prompt, ()) for task in tasks]
    tokenizer = train_tokenizer(texts, 400, tmp_path_factory.mktemp("tokenizer"), "")

    def reply(request: Any) -> list[int]:
        prompt = tokenizer.decode(list(request.prompt_token_ids), skip_special_tokens=False)
        text = PHONE.scripted.reply(prompt, Random(request.seed), STYLE)
        return list(tokenizer.encode(text + STYLE.stop_token, add_special_tokens=False))

    engine = ScriptedEngine(reply, "agent", max_length=4096)
    requests = [EpisodeRequest(f"r{i}", task, f"g{i}", 0, 0, 0, seed=100 + i) for i, task in enumerate(tasks)]
    rollouts = play(
        requests,
        make_env=lambda task: PHONE.env(),
        style=STYLE,
        tokenizer=tokenizer,
        engine=engine,
        settings=PlaySettings(1.0, 2048, 8, "agent", "tok", STYLE.digest),
    )
    return rollouts, {task.task_id: task for task in tasks}, tokenizer


def changed(played: Any, rollout: Rollout, edit: Edit, **options: Any) -> Rollout | None:
    _, tasks, tokenizer = played
    env = PHONE.env()
    arguments = {"env": env, "style": STYLE, "tokenizer": tokenizer, "max_length": 4096} | options
    return changed_state(rollout, tasks[rollout.task_id], edit, **arguments)


def all_edits(played: Any) -> list[tuple[Rollout, Edit]]:
    rollouts, tasks, _ = played
    return [(r, edit) for r in rollouts for edit in PHONE.probe_edits(r, tasks[r.task_id].level, STYLE)]


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
            env = PHONE.env()
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


@pytest.fixture(scope="module", params=["compact", "full"])
def spoken(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[Rollout], Any, Any]:
    """Style, episodes of scripted policies at levels 3 to 5, tasks and tokenizer."""
    style = PHONE.style(request.param)
    made = generate_tasks(
        num_companies=15, num_train=24, num_val=4, num_test=4, level_shares={3: 0.4, 4: 0.3, 5: 0.3}
    )
    tasks = {f"r{i}": task for i, task in enumerate(made[:24])}
    policies = ("oracle", "prober", "adaptive")
    lines = {
        key: PHONE.demonstrators.play(task, policies[i % len(policies)], 100 + i, 0.1, style=style)
        for i, (key, task) in enumerate(tasks.items())
    }
    texts = [style.render_prompt(task.prompt, ()) for task in tasks.values()]
    tokenizer = train_tokenizer(
        texts, 400, tmp_path_factory.mktemp("tokenizer"), "", special_tokens=style.special_tokens
    )

    def reply(asked: Any) -> list[int]:
        key, _, turn = asked.request_id.rpartition(":")
        text = lines[key][int(turn)].text
        return list(tokenizer.encode(text + style.stop_token, add_special_tokens=False))

    rollouts = play(
        [EpisodeRequest(key, task, key, 0, 0, 0, seed=100 + int(key[1:])) for key, task in tasks.items()],
        make_env=lambda task: PHONE.env(),
        style=style,
        tokenizer=tokenizer,
        engine=ScriptedEngine(reply, "agent", max_length=2**16),
        settings=PlaySettings(1.0, 2**15, 8, "agent", "tok", style.digest),
    )
    return style, rollouts, {task.task_id: task for task in tasks.values()}, tokenizer


def waits_anyway(task: Task) -> bool:
    env = PHONE.env()
    env.reset(task, 0)
    return bool(env.world.closings)


def progress(task: Task, seed: int, style: Any, texts: Any) -> tuple[Any, float]:
    """Returns what has been reached, and the turns still needed."""
    env = PHONE.env()
    env.reset(task, seed)
    for text in texts:
        assert env.step(style.parse(text)).infra_error is None
    state = env.state
    return (state.form, state.served, state.referred, state.rung, state.held), env.turns_to_success


def test_at_harder_levels_and_in_either_style_changes_do_what_they_are_said_to_do(spoken: Any) -> None:
    style, rollouts, tasks, tokenizer = spoken
    seen: dict[str, int] = dict.fromkeys(KINDS, 0)
    for rollout in rollouts:
        task, texts = tasks[rollout.task_id], [step.text for step in rollout.steps]
        for edit in PHONE.probe_edits(rollout, task.level, style):
            state = changed_state(
                rollout,
                task,
                edit,
                env=PHONE.env(),
                style=style,
                tokenizer=tokenizer,
                max_length=2**16,
                other_prompt=(1, 2, 3),
            )
            seen[edit.kind] += state is not None
            if edit.kind in ("filler", "style"):
                assert state is not None
            if edit.kind == "merge":
                assert style.parse(edit.texts[0]).status == "too_many"
            if edit.kind == "empty_reply":
                assert not style.parse(edit.texts[0]).calls
            if edit.kind in ("duplicate", "split", "corrupted_step") and state is not None:
                reached, left = progress(task, rollout.seed, style, [*texts[: edit.start], *edit.texts])
                originally, before = progress(task, rollout.seed, style, texts[: edit.compare])
                if edit.kind == "corrupted_step":
                    # Where lines open late, the turns that are left pass whatever is done.
                    assert left > before or (left == before and waits_anyway(task))
                else:
                    assert reached == originally
    assert all(number >= 3 for number in seen.values()), seen


def test_a_held_call_is_neither_doubled_nor_split_and_a_wait_can_be_wrong(spoken: Any) -> None:
    style, rollouts, tasks, _ = spoken
    corrupted_waits = 0
    for rollout in rollouts:
        late = {event.turn for event in rollout.events if event.code in ("on_hold", "closed", "waited")}
        for edit in PHONE.probe_edits(rollout, tasks[rollout.task_id].level, style):
            if edit.kind == "duplicate":
                assert edit.start - 1 not in late
            if edit.kind == "split":
                assert edit.start not in late
            if edit.kind == "corrupted_step":
                call = style.parse(rollout.steps[edit.start].text).calls[0]
                corrupted_waits += call.name == "wait"
    assert corrupted_waits >= 1


def test_a_thought_before_a_corrupted_or_split_call_stays(played: Any) -> None:
    rollouts, tasks, _ = played
    found = set()
    for rollout in rollouts:
        steps = tuple(replace(step, text=f"R1 first: Fraud\n{step.text}") for step in rollout.steps)
        thoughtful = replace(rollout, steps=steps)
        for edit in PHONE.probe_edits(thoughtful, tasks[rollout.task_id].level, STYLE):
            if edit.kind in ("corrupted_step", "split"):
                thought, call = edit.texts[0].split("\n")
                assert thought == "R1 first: Fraud"
                assert STYLE.parse(call).status == "ok"
                assert not steps[edit.start].text.endswith(f"\n{call}")
                found.add(edit.kind)
    assert found == {"corrupted_step", "split"}
