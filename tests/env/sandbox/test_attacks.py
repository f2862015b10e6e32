"""The attack corpus: none passes, none harms; as root and as nobody, with and without namespaces."""

import json
import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from env.sandbox import Limits, Sandbox
from env.sandbox.sandbox import WEAK
from tests.env.sandbox import corpus
from tests.env.sandbox.as_nobody import CANNOT
from tests.env.sandbox.attacked import HARNESS

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
PLACES = dict.fromkeys(("FILE", "FOLDER", "PORT", "PID", "ROOT"), "0")

SLOW = pytest.mark.slow
LEVELS = [
    pytest.param("me", (), 2, id="me, namespaces"),
    pytest.param("me", ("namespaces",), 1, id="me, no namespaces", marks=SLOW),
    pytest.param("nobody", (), 2, id="nobody, namespaces", marks=SLOW),
    pytest.param("nobody", ("namespaces",), 1, id="nobody, no namespaces", marks=SLOW),
]
"""Who judges, what is left off, the level that this has; `.ci/run`, started by root, plays all of them."""


@cache
def attacked(who: str, kind: str, without: tuple[str, ...]) -> dict[str, Any]:
    """Returns what `attacked.py` found."""
    if sys.platform != "linux":
        pytest.skip("confinement needs Linux")
    if who == "nobody" and os.getuid() != 0:
        pytest.skip("only root can become nobody: run the tests as root for both")
    corpus.programs(PLACES)
    become = [sys.executable, str(HERE / "as_nobody.py")] if who == "nobody" else []
    done = subprocess.run(
        [*become, sys.executable, "-W", "error", str(HERE / "attacked.py"), kind, *without],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    if done.returncode == CANNOT:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["uid"] == 65534) == (who == "nobody")
    return found


def test_the_corpus_is_whole_and_as_large_as_the_page_says() -> None:
    lines = (HERE / "attacks" / "answers.jsonl").read_text("utf-8").splitlines()
    sizes = len(corpus.programs(PLACES)), len(corpus.answers(PLACES))
    assert sizes[1] == len(lines)
    assert sizes >= (60, 40)
    assert "{} programs, {} answers".format(*sizes) in (ROOT / "docs" / "sandbox.md").read_text("utf-8")


@pytest.mark.parametrize(("who", "without", "level"), LEVELS)
def test_no_program_passes_or_gets_out_and_none_harms(who: str, without: tuple[str, ...], level: int) -> None:
    found = attacked(who, "programs", without)
    assert found["level"] == level
    assert found["outcomes"].keys() == corpus.programs(PLACES).keys()
    assert not [name for name, (_, passed, _, _) in found["outcomes"].items() if passed]
    assert not {name: told for name, (_, _, told, _) in found["outcomes"].items() if told}
    assert not [name for name, (*_, recovered) in found["outcomes"].items() if not recovered]
    assert not [name for name, (status, *_) in found["outcomes"].items() if status == "unavailable"]
    assert not found["harm"]


def test_the_same_attacks_succeed_where_nothing_is_walled_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the corpus would prove nothing; these three do no harm."""
    (tmp_path / "file").write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        sources = corpus.programs(
            PLACES | {"FILE": f"{tmp_path}/file", "FOLDER": str(tmp_path), "PORT": port}
        )
        monkeypatch.setenv(WEAK, "accepted")
        sandbox = Sandbox(("namespaces", "landlock", "seccomp", "user"))
        for name in ("reads_a_file", "makes_a_file", "dials_out"):
            outcome = sandbox.run(HARNESS, {"source": sources[name], "inputs": [0]}, Limits())
            assert "ESCAPED" in f"{outcome.value} {sorted(tmp_path.iterdir())}", name
    sandbox.close()


BOMBS = {
    "exit_zero": "raised",
    "hard_exit_zero": "crashed",
    "segfault": "crashed",
    "stopped": "timeout",
    "sleeper": "timeout",
    "time_bomb": "timeout",
    "deaf_time_bomb": "timeout",
    "slow_regex": "timeout",
    "waits_for_a_message": "raised",
    "text_bomb": "memory",
    "output_bomb": "output",
    "error_bomb": "output",
    "delivery_bomb": "output",
    "length_lies": "output",
    "deep_json": "crashed",
    "forges_unavailable": "crashed",
    "odd_end": "crashed",
    "fork_bomb": "raised",
    "shell": "raised",
    "dials_out": "ok",
}


@pytest.mark.parametrize(("who", "without", "level"), LEVELS)
def test_each_bomb_ends_in_its_own_way(who: str, without: tuple[str, ...], level: int) -> None:
    outcomes = attacked(who, "programs", without)["outcomes"]
    assert {name: outcomes[name][0] for name in BOMBS} == BOMBS


@pytest.mark.slow
@pytest.mark.parametrize("who", ["me", "nobody"])
def test_no_answer_harms_even_a_judge_that_evaluates_it(who: str) -> None:
    found = attacked(who, "answers", ())
    assert found["outcomes"].keys() == corpus.answers(PLACES).keys()
    assert not [name for name, (status, _) in found["outcomes"].items() if status == "unavailable"]
    assert not found["harm"]
