"""Changed steps of phone episodes: legal, replayed by the environment, and doing what they are said to do."""

from dataclasses import replace
from typing import Any

import pytest

from env.offer import Edit
from env.phone.episode.edits import FILLER, THANKS
from env.phone.offer import PHONE
from env.phone.solver.solver import fewest_turns
from env.phone.tasks import generate_tasks
from env.play.edited_steps import changed_state
from env.play.player import Player
from env.play.queue import play_unit
from env.play.requests import EpisodeRequest, PlaySettings
from env.play.units import Episodes
from pipeline.engines.scripted import ScriptedEngine
from pipeline.models.tiny import train_tokenizer
from pipeline.types import Rollout, Task
from tests.env.phone.worlds import started, world_of

KINDS = {"filler", "duplicate", "split", "merge", "style", "empty_reply", "corrupted_step", "swapped_task"}
POLICIES = ("oracle", "prober", "adaptive", "noisy_adaptive", "over_collector")
CASES = {
    "compact, lower levels": ("compact", {1: 0.5, 2: 0.5}),
    "compact, upper levels": ("compact", {3: 0.4, 4: 0.3, 5: 0.3}),
    "full, upper levels": ("full", {3: 0.4, 4: 0.3, 5: 0.3}),
}


class Played:
    """Episodes of scripted policies, with their tasks, style and tokenizer."""

    def __init__(self, style: str, shares: dict[int, float], folder: Any) -> None:
        self.style = PHONE.style(style)
        made = generate_tasks(num_companies=15, num_train=32, num_val=4, num_test=4, level_shares=shares)
        by_id = {f"r{i}": task for i, task in enumerate(made[:32])}
        self.tasks: dict[str, Task] = {task.task_id: task for task in by_id.values()}
        lines = {
            key: PHONE.demonstrators.play(task, POLICIES[i % len(POLICIES)], 100 + i, 0.4, style=self.style)
            for i, (key, task) in enumerate(by_id.items())
        }
        texts = [self.style.render_prompt(task.prompt, ()) for task in by_id.values()]
        self.tokenizer = train_tokenizer(texts, 400, folder, "", special_tokens=self.style.special_tokens)

        def reply(asked: Any) -> list[int]:
            key, _, turn = asked.request_id.rpartition(":")
            text = lines[key][int(turn)].text + self.style.stop_token
            return list(self.tokenizer.encode(text, add_special_tokens=False))

        engine = ScriptedEngine(reply, "agent", max_length=2**16)
        settings = PlaySettings(1.0, 2**15, 8, "agent", "tok", self.style.digest)
        player = Player(engine, self.tokenizer, self.style, settings, lambda task: PHONE.env())
        asked = [EpisodeRequest(key, t, key, 0, 0, 0, seed=100 + int(key[1:])) for key, t in by_id.items()]
        self.rollouts = play_unit(Episodes(asked), player).rollouts

    def edits(self) -> list[tuple[Rollout, Edit]]:
        return [(r, edit) for r in self.rollouts for edit in self.edits_of(r)]

    def edits_of(self, rollout: Rollout) -> list[Edit]:
        return PHONE.probe_edits(rollout, self.tasks[rollout.task_id].level, self.style)

    def changed(self, rollout: Rollout, edit: Edit, **options: Any) -> Rollout | None:
        task = self.tasks[rollout.task_id]
        given = {"style": self.style, "tokenizer": self.tokenizer, "max_length": 2**16} | options
        return changed_state(rollout, task, edit, env=PHONE.env(), **given)

    def progress(self, rollout: Rollout, texts: Any) -> tuple[Any, float]:
        """Returns what has been reached, and the turns still needed."""
        env = started(self.tasks[rollout.task_id], rollout.seed)
        for text in texts:
            assert env.step(self.style.parse(text)).infra_error is None
        state = env.state
        reached = (state.form, state.served, state.referred, state.rung, state.held)
        return reached, fewest_turns(env.world, state)


@pytest.fixture(scope="module", params=CASES)
def played(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Played(*CASES[request.param], tmp_path_factory.mktemp("tokenizer"))


def test_a_changed_state_is_a_state_of_the_changed_episode(played: Played) -> None:
    """The original up to the change, then the new message and the environment's reply."""
    seen, wrong = dict.fromkeys(KINDS, 0), []
    for rollout, edit in played.edits():
        assert edit.compare < len(rollout.steps)
        assert edit.other_prompt == (edit.kind == "swapped_task")
        state = played.changed(rollout, edit, other_prompt=(1, 2, 3))
        if state is None:
            assert edit.kind not in ("filler", "style")
            continue
        seen[edit.kind] += 1
        text = played.tokenizer.decode(list(state.response_token_ids), skip_special_tokens=False)
        before = rollout.response_token_ids[: rollout.steps[edit.start].token_start]
        assert state.response_token_ids[: len(before)] == before
        for message in edit.texts:
            assert f"{message}{played.style.stop_token}" in text
        assert text.endswith(played.style.render_replies([])) or not text
        assert state.prompt_token_ids == ((1, 2, 3) if edit.other_prompt else rollout.prompt_token_ids)
        *played_before, step = state.steps
        assert step.token_start == len(state.response_token_ids)
        kept = [(s.token_start, s.text, s.verifier_status, s.verifier_code) for s in played_before]
        assert kept[: edit.start] == [
            (s.token_start, s.text, s.verifier_status, s.verifier_code) for s in rollout.steps[: edit.start]
        ]
        assert [s.text for s in played_before[edit.start :]] == list(edit.texts)
        if edit.kind == "corrupted_step":  # where lines open late, waiting is progress whatever is said
            waits_anyway = world_of(played.tasks[rollout.task_id]).closings
            wrong.append(waits_anyway or played_before[edit.start].verifier_status != "ok")
        assert step.step_index == edit.start + len(edit.texts)
        assert set(state.loss_mask) <= {0}  # nobody sampled it
        if edit.kind == "filler":
            words = played.tokenizer.encode(f"{FILLER}\n", add_special_tokens=False)
            original = rollout.steps[edit.compare].token_start
            # The pieces may join at the seam; the world's reply is the same.
            assert abs(len(state.response_token_ids) - original - len(words)) <= 2
    assert all(number >= 3 for number in seen.values()), seen
    assert all(wrong)


def test_changes_do_what_they_are_said_to_do(played: Played) -> None:
    for rollout, edit in played.edits():
        texts = [step.text for step in rollout.steps]
        if edit.kind == "merge":
            assert played.style.parse(edit.texts[0]).status == "too_many"
        if edit.kind == "empty_reply":
            is_unknown = edit.texts[0] == THANKS and played.style.name == "compact"
            assert played.style.parse(edit.texts[0]).status == ("unknown_tool" if is_unknown else "none")
        if edit.kind in ("duplicate", "split", "corrupted_step") and played.changed(rollout, edit):
            reached, left = played.progress(rollout, [*texts[: edit.start], *edit.texts])
            originally, before = played.progress(rollout, texts[: edit.compare])
            if edit.kind == "corrupted_step":
                # Where lines open late, the turns that are left pass whatever is done.
                waits_anyway = world_of(played.tasks[rollout.task_id]).closings
                assert left > before or (left == before and waits_anyway)
            else:
                assert reached == originally


def test_a_held_call_is_neither_doubled_nor_split_and_a_wait_can_be_wrong(played: Played) -> None:
    corrupted = set()
    for rollout, edit in played.edits():
        late = {event.turn for event in rollout.events if event.code in ("on_hold", "closed", "waited")}
        assert edit.kind != "duplicate" or edit.start - 1 not in late
        assert edit.kind != "split" or edit.start not in late
        if edit.kind == "corrupted_step":
            corrupted.add(played.style.parse(rollout.steps[edit.start].text).calls[0].name)
    assert ("wait" in corrupted) == any(task.level > 2 for task in played.tasks.values())


def test_what_does_not_fit_or_does_something_else_is_left_out(played: Played) -> None:
    rollout, edit = next((r, e) for r, e in played.edits() if e.kind == "filler")
    assert played.changed(rollout, edit, max_length=len(rollout.prompt_token_ids) + 5) is None
    other = Edit("filler", edit.start, ("form email",), edit.compare, same_events=True)
    assert played.changed(rollout, other) is None


def test_a_thought_before_a_corrupted_or_split_call_stays(played: Played) -> None:
    style, found = played.style, set()
    for rollout in played.rollouts:
        plain = [style.parse(step.text) for step in rollout.steps]
        texts = [style.with_thought(action, "R1 first: Fraud").text for action in plain]
        steps = [replace(step, text=text) for step, text in zip(rollout.steps, texts, strict=True)]
        for edit in played.edits_of(replace(rollout, steps=tuple(steps))):
            if edit.kind in ("corrupted_step", "split"):
                own = plain[edit.start].text
                thought = texts[edit.start].removesuffix(own)
                assert edit.texts[0].startswith(thought)
                call = edit.texts[0].removeprefix(thought)
                assert style.parse(call).status == "ok"
                assert call != own
                found.add(edit.kind)
    assert found == {"corrupted_step", "split"}
