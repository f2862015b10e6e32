"""Recorded solutions: whose task, what reward, what becomes of rows that are none."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from env.catalog import offer_of
from env.chat.coder import Coder
from env.play.player import Player
from env.play.recorded import DISAGREES, judged_steps, recorded_rollout
from env.play.requests import EpisodeRequest, PlaySettings
from env.preferences import Preferred, read_preferences
from env.protocol import StepResult
from env.solutions import Solution, Solutions, joined_steps, read_labelled, read_solutions
from pipeline.engines.scripted import ScriptedEngine
from pipeline.errors import ConfigError
from pipeline.models.tiny import train_tokenizer
from pipeline.rows import BadRowError, Row
from pipeline.steps import check_tiling
from pipeline.tables import rollouts_from, rollouts_table, steps_table
from pipeline.types import Task
from tests.env.test_splitters import Notebook

SHORT = offer_of("short")


def task(name: str, content: str, **details: Any) -> Task:
    said = ({"role": "user", "content": content},)
    key = '{"answers":["4"]}'
    return Task(name, "short", "train", 1, said, "rule", key, "short_text", name, 0, details)


TASKS = [task("t0", "2 + 2?\n\nEnd so.", asked="2 + 2?"), task("t1", "Which?\nA) x", asked="Which?")]
TASKS += [task("t2", "Which?\nA) y", asked="Which?")]


def source(path: Path, *rows: dict[str, Any], **columns: str) -> Solutions:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Solutions(source=str(path), columns=columns)


def test_a_row_names_its_task_by_id_prompt_or_question(tmp_path: Path) -> None:
    names = ["t0", "2 + 2?", "2 + 2?  End so.", [{"role": "user", "content": "2 + 2?\n\nEnd so."}]]
    rows = [{"task": name, "said": f"{i}", "correct": i == 0} for i, name in enumerate(names)]
    solutions, left_out = read_solutions(source(tmp_path / "a.jsonl", *rows, text="said"), TASKS)
    assert left_out == []
    assert [(s.task.task_id, s.text, s.reward) for s in solutions] == [
        ("t0", str(i), float(i == 0)) for i in range(4)
    ]


def test_rows_that_are_no_solution_are_left_out_with_their_reasons(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"task": "t0", "text": "4", "reward": 0.5},
        {"task": "t0", "text": "4", "reward": 1},
        {"task": "t9", "text": "4", "reward": 1},
        {"task": "Which?", "text": "4", "reward": 1},
        {"task": "t0", "text": "5", "reward": -1},
        {"task": "t0", "text": "6", "reward": "yes"},
        {"task": "t0", "text": " ", "reward": 1},
        {"task": "t0", "text": None, "reward": 1},
        {"task": [{"role": "user"}, 3], "text": "4", "reward": 1},
        {"task": "t1", "text": [{"role": "assistant", "content": "x"}], "reward": None},
    ]
    solutions, left_out = read_solutions(source(tmp_path / "a.jsonl", *rows), TASKS)
    assert [(s.task.task_id, s.text, s.reward) for s in solutions] == [("t0", "4", 0.5), ("t1", "x", None)]
    kinds = [
        "duplicate",
        "no_task",
        "several_tasks",
        "bad_reward",
        "bad_reward",
        "bad_text",
        "no_text",
        "no_task",
    ]
    assert [(row.row, row.kind) for row in left_out] == list(enumerate(kinds, 2))
    with pytest.raises(ConfigError, match=r"none of 1 rows is a solution .*no_task, row 1"):
        read_solutions(source(tmp_path / "b.jsonl", rows[2]), TASKS)


def test_labelled_steps_are_joined_on_lines_of_their_own(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"problem": "2 + 2?", "steps": ["a = b", "c!\n", "so"], "label": 1, "final_answer_correct": False},
        {"problem": "2 + 2?", "steps": ["a = b"], "label": -1, "final_answer_correct": True},
        *({"problem": "2 + 2?", "steps": ["a"], "label": label} for label in (1, -2, True, None, "0")),
        *({"problem": "2 + 2?", "steps": steps, "label": 0} for steps in ([], "ab", ["a", " "], [1])),
    ]
    solutions, left_out = read_labelled(source(tmp_path / "a.jsonl", *rows), TASKS)
    assert [(s.text, s.borders, s.first_wrong, s.reward) for s in solutions] == [
        ("a = b\nc!\nso", (6, 9), 1, 0.0),
        ("a = b", (), None, 1.0),
    ]
    assert [row.kind for row in left_out] == [*["bad_label"] * 3, "no_label", "bad_label", *["bad_steps"] * 4]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    texts = ["U: 2 + 2?\nEnd so. Which?\nA: Answer: 4\nso a = b\nc! \u20ac\n"] * 20
    return train_tokenizer(texts, 300, tmp_path_factory.mktemp("tokenizer"), "")


def player_of(tokenizer: Any, make_env: Any = None, budget: int = 60) -> Player:
    style = SHORT.style("plain", tokenizer)
    settings = PlaySettings(
        temperature=1.0,
        max_response_tokens=budget,
        max_live=1,
        policy_digest="recorded:x",
        tokenizer_digest="t",
        template_digest=style.digest,
        splitter="lines",
    )
    make_env = make_env or (lambda task: SHORT.env())
    return Player(
        ScriptedEngine(lambda request: (), "recorded:x", max_length=200), tokenizer, style, settings, make_env
    )


def rollout_of(player: Player, text: str, reward: float | None = None, **more: Any) -> Any:
    solution = Solution(Row("rows", 1, {}), TASKS[0], text, reward, **more)
    request = EpisodeRequest("r", TASKS[0], "g", 0, 0, 0, 0, kind="recorded")
    return recorded_rollout(solution, request, player, Coder(player.tokenizer, player.style.stop_token))


def test_a_solution_becomes_a_rollout_without_log_probabilities(tokenizer: Any) -> None:
    rollout = rollout_of(player_of(tokenizer), "so a = b\nAnswer: 4<|im_end|>")
    assert (rollout.kind, rollout.reward, rollout.finish_reason) == ("recorded", 1.0, "success")
    assert not rollout.has_logprobs
    assert all(math.isnan(x) for x in rollout.logprobs)
    assert [step.text for step in rollout.steps] == ["so a = b\n", "Answer: 4"]
    assert rollout.message_texts == ("so a = b\nAnswer: 4",)
    check_tiling(rollout)
    table = rollouts_table([rollout])
    assert table.column("logprobs").to_pylist() == [[]]
    [read] = rollouts_from(table, steps_table([rollout]))
    assert str(read) == str(rollout)  # NaN is not equal to itself


def test_the_recorded_reward_counts_and_the_verifiers_other_one_is_told(tokenizer: Any) -> None:
    player = player_of(tokenizer)
    right, wrong, graded = (rollout_of(player, "Answer: 4", reward) for reward in (1.0, 0.25, None))
    assert (right.reward, wrong.reward, graded.reward) == (1.0, 0.25, 1.0)
    assert [any(e.code == DISAGREES for e in r.events) for r in (right, wrong, graded)] == [
        False,
        True,
        False,
    ]
    assert wrong.finish_reason == "ended"


@pytest.mark.parametrize(
    ("text", "kind"),
    [("Answer: " + "4 " * 100, "too_long"), ("a<|im_end|>b", "stop_token")],
)
def test_what_no_policy_could_have_said_is_left_out(tokenizer: Any, text: str, kind: str) -> None:
    with pytest.raises(BadRowError) as caught:
        rollout_of(player_of(tokenizer), text)
    assert caught.value.kind == kind


def test_a_solution_of_an_environment_that_goes_on_is_left_out(tokenizer: Any) -> None:
    with pytest.raises(BadRowError, match="waits for more messages"):
        rollout_of(player_of(tokenizer, lambda task: Notebook()), "a")


class OneNote(Notebook):
    """Takes one message; lines with an exclamation mark are wrong."""

    def step(self, action: Any) -> Any:
        super().step(action)
        return StepResult((), terminated=True)


def test_labelled_steps_are_judged_as_they_are_cut_whatever_the_splitter_says(tokenizer: Any) -> None:
    steps = ["a = b\nso", "c!\nso", "a = b\n"]
    text, borders = joined_steps(steps)
    player = player_of(tokenizer, lambda task: OneNote())
    rollout = rollout_of(player, text, 0.0, borders=borders, first_wrong=1)
    assert [step.text for step in rollout.steps] == ["a = b\nso\n", "c!\nso\n", "a = b\n"]
    statuses = [step.verifier_status for step in rollout.steps]
    assert statuses == ["ok", "wrong", "ok"]
    solution = Solution(Row("rows", 1, {}), TASKS[0], text, 0.0, borders, 1)
    assert judged_steps(solution, OneNote(), player.style) == statuses
    check_tiling(rollout)


def preferences(path: Path, *rows: dict[str, Any], **columns: str) -> Preferred:
    return Preferred(source=source(path, *rows).source, columns=columns)


def test_a_preference_is_two_solutions_of_a_task_with_scores_or_one_and_zero(tmp_path: Path) -> None:
    asked, said = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "four"}
    rows: list[dict[str, Any]] = [
        {"prompt": "2 + 2?", "chosen": "4", "rejected": "5"},
        {"prompt": "2 + 2?", "chosen": [asked, said], "rejected": [said | {"content": "five"}]},
        {"prompt": "t1", "chosen": "x", "rejected": "y", "score_chosen": 8.5, "score_rejected": 3},
    ]
    found, left_out = read_preferences(preferences(tmp_path / "a.jsonl", *rows), TASKS)
    assert left_out == []
    assert [(c.task.task_id, c.text, c.reward, r.text, r.reward) for c, r in found] == [
        ("t0", "4", 1.0, "5", 0.0),
        ("t0", "four", 1.0, "five", 0.0),
        ("t1", "x", 8.5, "y", 3.0),
    ]


def test_before_an_answer_that_is_preferred_stands_its_tasks_prompt_or_nothing(tmp_path: Path) -> None:
    rules, asked, other = (
        {"role": role, "content": text}
        for role, text in (("system", "Be brief."), ("user", "2 + 2?"), ("user", "9 + 9?"))
    )
    four, five, call = ({"role": "assistant", "content": text} for text in ("4", "5", None))
    told = {"role": "tool", "content": "2 + 2 = 4"}
    rows: list[dict[str, Any]] = [
        {"prompt": "t0", "chosen": [*before, four], "rejected": [*before, five]}
        for before in (
            [rules, asked],
            [other],
            [asked, other],
            [rules],
            [asked | {"content": None}],
            [asked, four, other],
            [asked, call, told],
            [asked, four],
        )
    ]
    rows.append({"prompt": "t0", "chosen": "4!", "rejected": [other, five]})
    found, left_out = read_preferences(preferences(tmp_path / "a.jsonl", *rows), TASKS)
    assert [(c.row.number, c.text, r.text) for c, r in found] == [(1, "4", "5")]
    kinds = [*["other_prompt"] * 4, *["several_turns"] * 3, "other_prompt"]
    assert [(row.row, row.kind) for row in left_out] == list(enumerate(kinds, 2))


def test_rows_that_are_no_preference_are_left_out_with_their_reasons(tmp_path: Path) -> None:
    good = {"task": "t0", "chosen": "4", "rejected": "5", "chosen_score": 1, "rejected_score": 0}
    rows: list[dict[str, Any]] = [
        good,
        good,
        good | {"task": "t9"},
        good | {"rejected": "4"},
        good | {"rejected": " "},
        good | {"chosen": [{"role": "user", "content": "4"}]},
        good | {"chosen": None},
        good | {"chosen": "6", "chosen_score": 0},
        good | {"chosen": "6", "chosen_score": None},
        good | {"chosen": "6", "chosen_score": True},
    ]
    found, left_out = read_preferences(preferences(tmp_path / "a.jsonl", *rows), TASKS)
    assert [(c.row.number, r.row.number) for c, r in found] == [(1, 1)]
    kinds = ["duplicate", "no_task", "same_answer", "bad_rejected", "bad_chosen", "no_chosen"]
    assert [row.kind for row in left_out] == [*kinds, "no_margin", "bad_score", "bad_score"]
    with pytest.raises(ConfigError, match=r"none of 1 rows is a preference .*no_task.*Next: "):
        read_preferences(preferences(tmp_path / "b.jsonl", rows[2]), TASKS)
    with pytest.raises(ConfigError, match="no column for rejected"):
        read_preferences(preferences(tmp_path / "c.jsonl", {"task": "t0", "chosen": "4"}), TASKS)
