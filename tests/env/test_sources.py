"""Tasks from rows: splits by cluster, what is left out and why, rows of other libraries as they are."""

import json
import math
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from env.catalog import offer_of
from env.offer import TaskSet
from env.sources import messages_of, read_tasks
from pipeline.config import load_config
from pipeline.errors import ConfigError
from pipeline.rows import BadRowError
from stages.settings import Config

SHORT = offer_of("short")


def questions(number: int, clusters: int = 10, **more: Any) -> list[dict[str, Any]]:
    return [
        {"question": f"What is {i}?", "answer": i, "cluster": i % clusters, **more} for i in range(number)
    ]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def made(rows: Any, seed: int = 0, **settings: Any) -> TaskSet:
    sizes = {"num_train": 1000, "num_held_out": 10}
    section = SHORT.settings.model_validate({"environment": "short", "rows": rows, **sizes, **settings})
    return SHORT.task_set(section, seed)


def kinds(found: TaskSet) -> dict[str, int]:
    return dict(Counter(row.kind for row in found.left_out))


def test_one_source_is_split_by_cluster_the_same_way_each_time_and_every_row_is_accounted_for(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "rows.jsonl", questions(100))
    found = made(path)
    assert found == made(path)
    assert [t.task_id for t in found.tasks] != [t.task_id for t in made(path, seed=1).tasks]
    splits = defaultdict(set)
    for task in found.tasks:
        splits[task.split].add(task.cluster)
    assert Counter(task.split for task in found.tasks) == {"train": 80, "val": 10, "test": 10}
    assert sum(map(len, splits.values())) == len(set().union(*splits.values()))
    assert len(found.tasks) + len(found.left_out) == 100
    for split in splits:
        own = [task.index for task in found.tasks if task.split == split]
        assert own == list(range(len(own)))


def test_a_row_without_a_cluster_shares_one_with_nobody(tmp_path: Path) -> None:
    rows = [{"question": f"What is {i}?", "answer": i} for i in range(40)]
    found = made(write(tmp_path / "rows.jsonl", rows))
    assert len({task.cluster for task in found.tasks}) == 40
    pq.write_table(
        pa.Table.from_pylist([row | {"cluster": math.nan} for row in rows]), tmp_path / "r.parquet"
    )
    assert made(str(tmp_path / "r.parquet")).tasks == [
        replace(task, details=task.details | {"source": str(tmp_path / "r.parquet")}) for task in found.tasks
    ]


def test_sizes_are_the_most_that_a_split_gets_and_the_rest_is_counted(tmp_path: Path) -> None:
    found = made(write(tmp_path / "rows.jsonl", questions(100, 4)), num_train=20)
    assert Counter(task.split for task in found.tasks) == {"train": 20, "val": 10, "test": 10}
    assert Counter((row.kind, row.reason) for row in found.left_out) == {
        ("not_needed", "train is full with 20 tasks (tasks.num_train, tasks.num_held_out)"): 30,
        ("not_needed", "val is full with 10 tasks (tasks.num_train, tasks.num_held_out)"): 15,
        ("not_needed", "test is full with 10 tasks (tasks.num_train, tasks.num_held_out)"): 15,
    }
    indices = [task.details["row"] for task in found.tasks if task.split == "train"]
    assert indices != sorted(indices)  # chosen and ordered by hash, not the first rows of a sorted file


def test_what_is_there_twice_counts_once_on_the_held_out_side(tmp_path: Path) -> None:
    train = [
        *questions(30, 30),
        {"question": "What is 200?", "answer": 200},
        {"question": "Moon?", "answer": 1},
    ]
    train += [{"question": "Moon?", "answer": 2}, {"question": "new", "answer": 3, "cluster": 205}]
    train += [{"question": "what  is 201?", "answer": 201}, {"question": "moon?", "answer": 3}]
    test = [{"question": f"What is {i}?", "answer": i, "cluster": i} for i in range(200, 210)]
    rows = {"train": write(tmp_path / "train.jsonl", train), "test": write(tmp_path / "test.jsonl", test)}
    found = made(rows, num_held_out=5)
    left_out = [
        (Path(row.source).name, row.row, row.kind) for row in found.left_out if row.kind != "not_needed"
    ]
    assert left_out == [
        ("train.jsonl", 31, "duplicate"),
        ("train.jsonl", 33, "contradiction"),
        ("train.jsonl", 34, "cluster_elsewhere"),
        ("train.jsonl", 35, "duplicate"),
        ("train.jsonl", 36, "contradiction"),
    ]
    held_out = {task.ground_truth for task in found.tasks if task.split == "test"}
    assert held_out <= {json.dumps({"answers": [str(i)]}, separators=(",", ":")) for i in range(200, 210)}


def test_a_split_that_is_given_is_never_cut_from_train_instead(tmp_path: Path) -> None:
    rows = {"train": write(tmp_path / "train.jsonl", questions(40, 40))}
    rows |= {split: write(tmp_path / f"{split}.jsonl", questions(10)[:5]) for split in ("val", "test")}
    with pytest.raises(ConfigError, match="leaves no task for val"):
        made(rows)


def test_bad_rows_are_left_out_with_a_reason_and_a_source_of_bad_rows_is_refused(tmp_path: Path) -> None:
    bad = [{"question": None, "answer": 1}, {"question": "x", "answer": [[]]}, {"question": 3, "answer": 3}]
    found = made(write(tmp_path / "rows.jsonl", [*questions(40, 40), *bad]))
    assert kinds(found) == {"no_prompt": 1, "bad_answer": 1, "bad_prompt": 1}
    assert [row.row for row in found.left_out] == [41, 42, 43]
    rows = [{"question": f"q{i}", "answer": "a" * 500 if i < 41 else "b"} for i in range(80)]
    path = write(tmp_path / "bad.jsonl", rows)
    with pytest.raises(ConfigError, match=r"41 of 80 rows cannot be used \(bad_answer, row 1: .*columns"):
        made(path)


def test_a_row_whose_prompt_says_nothing_is_left_out(tmp_path: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": f"{i}?" if i else " "}], "answer": i} for i in range(40)]
    found = made(write(tmp_path / "rows.jsonl", rows), environment="short")
    assert (len(found.tasks), kinds(found)) == (39, {"bad_prompt": 1})


def test_too_few_clusters_to_hold_any_out_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"leaves no task for train .*smaller tasks\.num_held_out"):
        made(write(tmp_path / "rows.jsonl", questions(100, 2)))


def test_rows_may_name_their_split(tmp_path: Path) -> None:
    rows = questions(40, 40)
    for i, row in enumerate(rows):
        row["part"] = ["train", "Train", "Validation ", "test"][i % 4]
    rows[0]["part"], rows[1]["part"], rows[4]["part"] = "elsewhere", None, " "
    found = made(write(tmp_path / "rows.jsonl", rows), columns={"split": "part"})
    assert Counter(task.split for task in found.tasks) == {"train": 19, "val": 10, "test": 10}
    assert kinds(found) == {"bad_split": 1}


def test_columns_of_verl_load_as_they_are(tmp_path: Path) -> None:
    def row(i: int, split: str) -> dict[str, Any]:
        return {
            "data_source": "openai/gsm8k",
            "prompt": [
                {"role": "system", "content": "Think."},
                {"role": "user", "content": f"{i} + 1? End with ####"},
            ],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(i + 1)},
            "extra_info": {"split": split, "index": i, "answer": "a text", "question": f"{i} + 1?"},
        }

    path = write(tmp_path / "rows.jsonl", [row(i, "test" if i < 10 else "train") for i in range(40)])
    found = made(path)
    assert Counter(task.split for task in found.tasks) == {"train": 20, "val": 10, "test": 10}
    [task] = [task for task in found.tasks if task.details["row"] == 1]
    assert task.prompt == tuple(row(0, "test")["prompt"])
    assert task.split == "test"
    assert json.loads(task.ground_truth) == {"answers": ["1"]}


def test_a_column_that_holds_no_field_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = pa.Table.from_pylist([{"long": f"{i} step " * 99, **row} for i, row in enumerate(questions(40))])
    pq.write_table(table, path, use_dictionary=False)
    place = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    data = path.read_bytes()
    path.write_bytes(data[:place] + bytes(200) + data[place + 200 :])
    with pytest.raises(OSError, match="thrift"):
        pq.read_table(path)
    assert len(made(str(path)).tasks) > 30
    with pytest.raises(
        ConfigError, match=r"columns\.prompt = q, which no row has\. The rows have: long, question,"
    ):
        made(str(path), columns={"prompt": "q"})


@pytest.mark.parametrize("prompt", ["Six times {}?", [{"role": "user", "content": "Six times {}?"}]])
def test_columns_of_trl_load_as_they_are(tmp_path: Path, prompt: Any) -> None:
    text = json.dumps(prompt)
    rows = [{"prompt": json.loads(text.replace("{}", str(i))), "solution": str(6 * i)} for i in range(40)]
    found = made(write(tmp_path / "rows.jsonl", rows))
    assert len(found.tasks) == 40
    contents = {task.prompt[-1]["content"].partition("\n")[0] for task in found.tasks}
    assert contents == {f"Six times {i}?" for i in range(40)}


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        "",
        3,
        [{"role": "user"}],
        [{"role": "tool", "content": "x"}],
        [{"role": "assistant", "content": "x"}],
    ],
)
def test_a_prompt_is_a_text_or_messages_with_the_users_last(wrong: Any) -> None:
    with pytest.raises(BadRowError, match="the user's last"):
        messages_of({"prompt": wrong}, "prompt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows: {dev: a.jsonl}", "names dev; allowed: train, val, test"),
        ("rows: {train: a.jsonl, test: a.jsonl}", "gives two splits the same rows"),
        ("rows: {train: {source: a.jsonl, splt: x}}", "splt"),
        ("rows: 3", "rows"),
        ("columns: [a]", "columns"),
    ],
)
def test_a_wrong_section_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "own.yaml").write_text(f"tasks: {{environment: short, {text}}}")
    with pytest.raises(ConfigError, match=message):
        load_config(Config, tmp_path / "own.yaml")


def test_an_environment_of_rows_without_rows_says_so() -> None:
    with pytest.raises(ConfigError, match=r"tasks\.rows is empty"):
        read_tasks(SHORT.settings(), 0, environment="short", fields={}, problem_of=lambda values: None)  # type: ignore
