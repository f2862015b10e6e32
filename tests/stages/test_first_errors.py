"""`vdapo errors` on gsm8k's own solutions, of which one result each is changed: math's verifier finds it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stages.command import main
from tests.stages.conftest import make_lab

FILES = [folder / "shared" / "data" / "gsm8k" / "train.jsonl" for folder in Path(__file__).parents]
FILE = next((path for path in FILES if path.is_file()), None)
NUMBER = 120
ANNOTATED = re.compile(r"<<[^<>=]*=(-?\d+)>>\1(?![\d.,])")


def labelled(row: dict[str, str], number: int) -> dict[str, Any] | None:
    """Returns a solution in lines, as it is or with one result changed; None if none can be."""
    lines = row["answer"].split("\n")
    places = [i for i, line in enumerate(lines) if ANNOTATED.search(line)]
    if not places:
        return None
    label = places[number % len(places)] if number % 2 else -1
    if label >= 0:
        lines[label] = ANNOTATED.sub(lambda found: str(int(found[1]) + 7), lines[label], count=1)
    steps = [re.sub(r"<<[^<>]*>>", "", line) for line in lines]
    return {"problem": row["question"], "steps": steps, "label": label}


@pytest.mark.skipif(FILE is None, reason="gsm8k is not in ../shared/data/gsm8k")
def test_a_verifier_finds_the_changed_result_of_real_solutions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert FILE is not None
    rows = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()[: NUMBER + 80]]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = {
        "environment": "math",
        "rows": str(tmp_path / "rows.jsonl"),
        "num_train": 500,
        "num_held_out": 20,
    }
    lab = make_lab(tmp_path, json.dumps({"run": {"name": "r"}, "tasks": tasks}))
    assert lab.start("tasks") == 0
    made = [made for i, row in enumerate(rows[:NUMBER]) if (made := labelled(row, i))]
    (tmp_path / "labelled.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    capsys.readouterr()
    assert main(["errors", lab.config, str(tmp_path / "labelled.jsonl"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "critic" not in found
    assert found["verifier"]["num_wrong"] > 40
    assert found["verifier"]["none"]["value"] > 0.95
    assert found["verifier"]["exact"]["value"] > 0.6
    assert found["left_out"] == {}
