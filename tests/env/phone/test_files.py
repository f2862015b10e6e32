import json
from pathlib import Path

import pytest

from env.phone.files import main, read_files, write_files
from env.phone.tasks import generate_tasks
from pipeline.errors import ConfigError
from tests.env.phone.worlds import mixed_tasks

TASKS = mixed_tasks(30, companies=20, seed=4, others=8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(TASKS, tmp_path)
    return tmp_path


def read(folder):
    return read_files(folder / "companies.jsonl", folder / "tasks.jsonl")


def rewrite(path, changed):
    """Writes what a function makes of a file's rows."""
    rows = changed([json.loads(line) for line in path.read_text().splitlines()])
    path.write_text("\n".join(json.dumps(row) for row in rows))


def test_what_is_written_is_read_back(folder):
    assert read(folder) == TASKS


def test_the_command_writes_what_the_generator_makes(tmp_path, capsys):
    sizes = ["--companies", "8", "--train", "6", "--val", "2", "--test", "2", "--levels", "1", "3"]
    main([str(tmp_path), *sizes, "--seed", "1"])
    assert "14 tasks" in capsys.readouterr().out
    made = read(tmp_path)
    assert len(made) == 6 + 2 + 3 * 2
    assert {task.level for task in made} == {1, 3}
    main([str(tmp_path)])  # the seed by default
    assert read(tmp_path) == generate_tasks()


@pytest.mark.parametrize(
    ("name", "row", "fields", "message"),
    [
        ("companies", 2, {"level": 9}, r"row 3, field level: got 9; allowed: 1, 2, 3, 4, 5"),
        ("companies", 0, {"level": True}, r"row 1, field level: got True; allowed: 1, 2"),
        ("companies", 0, {"industry": "travel"}, r"field industry: got 'travel'; allowed: .* in group train"),
        ("companies", 1, {"index": 0}, r"row 2, field index: got 0; allowed: an index that no earlier row"),
        ("companies", 0, {"index": -1}, r"field index: got -1; allowed: 0 to 1399"),
        ("companies", 3, {"seed": 5}, r"row 4, field seed: got 5; allowed: 4 as in row 1"),
        ("companies", 0, {"industry": None}, r"row 1, field industry: missing"),
        ("companies", 0, {"colour": "red"}, r"row 1, field colour: unknown; known: seed, index"),
        ("tasks", 4, {"split": "dev"}, r"row 5, field split: got 'dev'; allowed: train, val"),
        ("tasks", 4, {"split": "test_unseen_company"}, r"row 5, field split: .* company 4 is of group train"),
        ("tasks", 0, {"company": 999}, r"row 1, field company: got 999; allowed: an index of .*companies"),
        ("tasks", 0, {"opening": 10**6}, r"row 1, field opening: got 1000000; allowed: 0 to"),
        ("tasks", 0, {"number": 1.5}, r"row 1, field number: got 1\.5; allowed: 0 to"),
    ],
)
def test_a_malformed_row_is_refused_by_file_row_and_field(folder, name, row, fields, message):
    def changed(rows):
        """Other values in a row; None takes the field away."""
        rows[row] = {key: value for key, value in (rows[row] | fields).items() if value is not None}
        return rows

    rewrite(folder / f"{name}.jsonl", changed)
    with pytest.raises(ConfigError, match=rf"{name}\.jsonl: .*{message}"):
        read(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "row 1 is no JSON"),
        ("[" * 100_000, "row 1 is no JSON"),
        ("[1]", "row 1 is list"),
        ("", "no row"),
        ('{"seed": 0, "split": "val", "seed": 0, "split": "val"}', "row 1, field (seed|split): there twice"),
    ],
)
def test_what_is_no_row_is_refused(folder, text, message):
    for name in ("companies", "tasks"):
        kept = (folder / f"{name}.jsonl").read_text()
        (folder / f"{name}.jsonl").write_text(text)
        with pytest.raises(ConfigError, match=message):
            read(folder)
        (folder / f"{name}.jsonl").write_text(kept)


def without(split):
    return lambda rows: [row for row in rows if row["split"] != split]


def shared_prompt(rows):
    """A validation task with a prompt of training's."""
    val = next(row for row in rows if row["split"] == "val")
    train = next(row for row in rows if row["split"] == "train" and row["company"] == val["company"])
    return [row | {"opening": train["opening"]} if row is val else row for row in rows]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (without("train"), r"tasks\.jsonl has no row of split train; give at least one"),
        (without("val"), r"tasks\.jsonl has no row of split val; give at least one"),
        (lambda rows: [*rows, rows[3]], r"row \d+ is the same task as row 4; remove one"),
        (shared_prompt, r"field opening: .* that train \(row \d+\) does not use"),
    ],
)
def test_tasks_that_do_not_go_together_are_refused(folder, changed, message):
    path = folder / "tasks.jsonl"
    rewrite(path, changed)
    with pytest.raises(ConfigError, match=message):
        read(folder)
    path.unlink()
    with pytest.raises(ConfigError, match=r"tasks\.jsonl cannot be read"):
        read(folder)


def test_a_task_that_cannot_be_solved_is_refused(folder, monkeypatch):
    monkeypatch.setattr("env.phone.tasks.fewest_turns", lambda world, state: 99)
    with pytest.raises(ConfigError, match=r"tasks\.jsonl: row 1 cannot be solved: a shortest plan has 100"):
        read(folder)
