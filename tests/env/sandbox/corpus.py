"""The attack corpus: programs and answer strings that may neither pass nor do harm, whoever judges them."""

import json
import os
import re
from pathlib import Path

import pytest

from env.sandbox.sandbox import WEAK

HERE = Path(__file__).parent / "attacks"

Places = dict[str, str]
"""What an attack may aim at: FILE, FOLDER, PORT, PID, ROOT -> where it is on this machine."""


def programs(places: Places) -> dict[str, str]:
    """Returns name -> source; each tries to pass as `solve(n)`, the sum of the digits of n."""
    _refuse_to_play_unconfined()
    parts = re.split(r"^=== (\w+): .+\n", (HERE / "programs.txt").read_text("utf-8"), flags=re.MULTILINE)[1:]
    return {name: _aimed(source, places) for name, source in zip(parts[::2], parts[1::2], strict=True)}


def answers(places: Places) -> dict[str, tuple[str, str]]:
    """Returns name -> (an answer as a model writes it, the right answer, which it is not)."""
    _refuse_to_play_unconfined()
    rows = map(json.loads, (HERE / "answers.jsonl").read_text("utf-8").splitlines())
    return {row["name"]: (_aimed(_written_out(row["answer"]), places), row["gold"]) for row in rows}


def _refuse_to_play_unconfined() -> None:
    if WEAK in os.environ:
        pytest.skip(f"{WEAK} is set, and some attacks remove all files that they reach: unset it")


def _written_out(answer: str | list[tuple[str, int]]) -> str:
    """Returns a text; a long one is stored as parts and how often each comes."""
    return answer if isinstance(answer, str) else "".join(part * times for part, times in answer)


def _aimed(text: str, places: Places) -> str:
    for name, place in {**places, "NUL": "\0"}.items():
        text = text.replace(f"@{name}@", place)
    return text
