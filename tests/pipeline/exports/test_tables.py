"""Whole tables: SQLite, and a folder as the hub has them. verl's files, as far as pyarrow reads them."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard

from pipeline.artifacts.artifact import Artifact
from pipeline.columns import SPECS
from pipeline.exports.sqlite import _describe, columns_of, create
from pipeline.tables import tasks_from
from stages.command import main
from tests.exports import Made


def test_sqlite_holds_every_row_and_value_in_typed_columns(export: Any, made: Made) -> None:
    with closing(sqlite3.connect(export("sqlite") / "run.sqlite")) as database:
        database.row_factory = sqlite3.Row
        assert database.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        for stage, name in (("tasks", "tasks"), ("rollouts", "rollouts"), ("rollouts", "steps")):
            stored = Artifact.open(made.run_dir, stage).table(name).to_pylist()
            found = database.execute(f"SELECT * FROM {name} ORDER BY rowid").fetchall()
            assert len(found) == len(stored)
            for row, values in zip(found, stored, strict=True):
                flat = {"stage": stage}
                for column, value in values.items():
                    inner = {f"{column}_{k}": v for k, v in value.items()} if isinstance(value, dict) else {}
                    flat |= inner or {column: value}
                read = {k: json.loads(row[k]) if isinstance(v, list) else row[k] for k, v in flat.items()}
                assert read == flat
                assert set(row.keys()) == set(flat)
        kinds = dict(database.execute("SELECT name, type FROM pragma_table_info('rollouts')").fetchall())
        assert (kinds["reward"], kinds["guided"], kinds["seed"], kinds["messages"]) == (
            *("REAL", "INTEGER", "INTEGER", "TEXT"),
        )
        plan = database.execute("EXPLAIN QUERY PLAN SELECT 1 FROM rollouts WHERE task_id = 'x'").fetchone()
        assert "rollouts_task_id" in plan["detail"]
        meaning = "SELECT description FROM dictionary WHERE of = 'tasks' AND name = 'extra_info_cluster'"
        assert "cluster" in database.execute(meaning).fetchone()[0]
        with pytest.raises(sqlite3.IntegrityError):
            database.execute("INSERT INTO rollouts SELECT * FROM rollouts LIMIT 1")


@pytest.mark.parametrize("name", sorted(SPECS))
def test_sqlite_takes_every_table_that_a_stage_may_have(name: str) -> None:
    spec = SPECS[name]
    with closing(sqlite3.connect(":memory:")) as database:
        create(database, name, columns_of(spec.schema), spec)
        keys = database.execute(f"SELECT name FROM pragma_table_info('{name}') WHERE pk ORDER BY pk")
        own = ["own_stage" if column == "stage" else column for column in spec.id_columns]
        assert [key for (key,) in keys] == ["stage", *own]


def test_views_count_what_could_not_be_graded_and_leave_it_out_of_success(export: Any, made: Made) -> None:
    with closing(sqlite3.connect(export("sqlite") / "run.sqlite")) as database:
        database.row_factory = sqlite3.Row
        seen = database.execute(
            "SELECT sum(rollouts) AS n, sum(graded) AS graded, sum(graded * success) AS rewards FROM success"
        ).fetchone()
        policies = database.execute(
            "SELECT DISTINCT stage, policy_digest, temperature FROM success"
        ).fetchall()
        of_task = database.execute(
            "SELECT rollouts, graded, success FROM success_by_task "
            "WHERE task_id = ? AND kind = 'whole' AND NOT guided",
            [made.tasks[0].task_id],
        ).fetchone()
    rewards = [r.reward for r in made.rollouts if r.reward is not None]
    assert [tuple(row) for row in policies] == [
        ("rollouts", made.rollouts[0].policy_digest, made.rollouts[0].temperature)
    ]
    assert (seen["n"], seen["graded"]) == (len(made.rollouts), len(made.rollouts) - 1)
    assert seen["rewards"] == pytest.approx(sum(rewards))
    mine = [
        r.reward
        for r in made.rollouts
        if r.task_id == made.tasks[0].task_id and r.kind == "whole" and not r.guided
    ]
    known = [reward for reward in mine if reward is not None]
    assert tuple(of_task) == (len(mine), len(known), pytest.approx(sum(known) / len(known)))
    assert len(mine) == len(known) + 1


def test_a_success_that_has_a_price_is_a_success_and_its_reward_is_in_the_mean() -> None:
    rows = [("a", "success", 0.95), ("b", "ended", 0.0), ("c", "success", None)]
    with closing(sqlite3.connect(":memory:")) as database:
        for name in ("rollouts", "tasks"):
            create(database, name, columns_of(SPECS[name].schema), SPECS[name])
        into = "rollouts (stage, task_id, rollout_id, finish_reason, reward)"
        database.executemany(f"INSERT INTO {into} VALUES ('s', 't', ?, ?, ?)", rows)
        _describe(database, ["rollouts", "tasks"])
        [seen] = database.execute("SELECT rollouts, graded, success, mean_reward FROM success").fetchall()
    assert seen == (3, 2, 0.5, 0.475)


def test_the_hub_s_own_reader_takes_the_card_and_every_data_set_of_it(export: Any, tmp_path: Path) -> None:
    folder = export("datasets", "--stage", "rollouts")
    card = DatasetCard.load(folder / "README.md")
    assert [config["config_name"] for config in card.data.to_dict()["configs"]] == [
        *("rollouts", "rollouts_steps"),
    ]
    assert card.data.pretty_name == "Tables of the run r"
    for config in card.data.to_dict()["configs"]:
        name = config["config_name"]
        loaded = datasets.load_dataset(str(folder), name, cache_dir=str(tmp_path / "cache"))["train"]
        [file] = folder.glob(config["data_files"])
        assert loaded.to_list() == pq.read_table(file).to_pylist()


def test_verl_s_files_are_the_tasks_of_each_split_and_dialogues_with_their_tools(
    export: Any, made: Made
) -> None:
    folder = export("verl")
    assert sorted(path.name for path in folder.iterdir()) == ["sft.parquet", "train.parquet", "val.parquet"]
    for split in ("train", "val"):
        tasks = tasks_from(pq.read_table(folder / f"{split}.parquet"))
        assert tasks == [task for task in made.tasks if task.split == split]
    rows = pq.read_table(folder / "sft.parquet").to_pylist()
    assert [row["rollout_id"] for row in rows] == [r.rollout_id for r in made.bare]
    for row, r in zip(rows, made.bare, strict=True):
        first = row["messages"][0]
        assert f"<|im_start|>{first['role']}\n{first['content']}<|im_end|>\n" in made.tokenizer.decode(
            list(r.prompt_token_ids)
        )
        assert '"name": "search_company"' in first["content"]


def test_verl_s_tasks_need_no_rollouts(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made.run_dir / "tasks", tmp_path / "r" / "tasks")
    folder = tmp_path / "verl"
    assert main(["export", str(tmp_path / "r"), "--to", "verl", "--split", "val", str(folder)]) == 0
    assert [path.name for path in folder.iterdir()] == ["val.parquet"]
    assert main(["export", str(tmp_path / "r"), "--to", "openai", str(tmp_path / "openai")]) == 3
