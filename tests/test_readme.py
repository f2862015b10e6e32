"""Every command of README.md, run: shrunk in `make test-all`, to the letter in `make soak`.

Each test works in a copy of the project whose `.venv` lends the packages of the running interpreter, so the
commands stay as they are written and nothing is installed.
"""

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from pipeline.config import load_config
from pipeline.errors import ExitCode
from pipeline.runs import MAIN_CHAIN
from stages.settings import Config

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
EXEMPT = {"make test"}
"""`make test` runs this test."""

TINY = (
    "training.threads=1 tasks.num_companies=8 tasks.num_train=36 tasks.num_held_out=6 "
    "'tasks.level_shares={1: 1.0}' sft.model.hidden_size=64 sft.model.num_layers=2 "
    "sft.model.intermediate_size=128 sft.practice_tasks=0 "
    "sft.num_demonstrations=200 sft.num_updates=120 sft.batch_rows=16 sft.learning_rate=5.0e-3 "
    "'sft.shares={oracle: 0.6, over_collector: 0.4}' rollouts.num_tasks=24 rollouts.chain.draws=2 "
    "labels.max_states=30 labels.num_continuations=4 critic.max_epochs=1 critic.head_updates=3 "
    "critic_report.tasks_per_split=6 critic_report.draws=2 critic_report.num_continuations=3 "
    "actor.num_iterations=2 actor.tasks_per_update=2 "
    "actor.credit.on_weak_critic=allow evaluation.draws=1"
)
"""One minute for the whole chain. Without practice tasks the model learns its few companies by heart, so that
some rollouts succeed; such a critic knows nothing, so the actor must not ask for its gate."""


def commands_of(text: str) -> list[tuple[str, str]]:
    """Returns the commands of a page with their languages: lines of bash blocks, whole python blocks."""
    commands = []
    for language, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        if language == "python":
            commands.append((language, body))
        elif language != "text":  # what something says; `tests/env/test_readme_rollout.py` plays it again
            assert language == "bash", f"a block of {language!r} that no test runs"
            lines = [line for line in body.splitlines() if line.strip() and not line.startswith("#")]
            assert not [line for line in lines if line.endswith("\\")], "one command a line, please"
            commands += [(language, line) for line in lines]
    return commands


def shrunk(command: str) -> str:
    """Returns the command with TINY before the settings that it makes itself; others are left alone."""
    words = shlex.split(command)
    stages = {"demo", "all", *MAIN_CHAIN}
    if words[0] == "make" and stages & set(words):
        own = next((word.removeprefix("SET=") for word in words if word.startswith("SET=")), "")
        words = [word for word in words if not word.startswith("SET=")]
        return shlex.join([*words, f"SET={TINY} {own}".rstrip()])
    if words[:2] == ["python", "-m"] and words[2].startswith("stages."):
        return shlex.join([*words[:4], *shlex.split(TINY), *words[4:]])
    return command


def copy_of_the_project(folder: Path) -> dict[str, str]:
    """Copies what a clone would hold, with a `.venv` that is set up; returns the environment to run in."""
    kept_out = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "tests")
    shutil.copytree(ROOT, folder, ignore=lambda path, names: kept_out(path, names) | runs(path, names))
    venv = folder / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    of_the_copy = {"base": str(venv), "platbase": str(venv)}
    inner = Path(sysconfig.get_path("purelib", "venv", vars=of_the_copy))
    paths = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    lines = [f"import site; site.addsitedir({path!r})\n" for path in paths]
    (inner / "lent.pth").write_text("".join(lines), encoding="utf-8")
    script = venv / "bin" / "vdapo"
    script.write_text(f'#!/bin/sh\nexec "{venv}/bin/python" -m stages.command "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    for stamp in (".installed-base", ".installed-dev"):
        (venv / stamp).touch()
    environment = {
        name: value
        for name, value in os.environ.items()
        # A make above this one must not lend its variables.
        if not name.startswith(("MAKE", "MFLAGS", "VDAPO_", "PYTHONPATH", "VIRTUAL_ENV"))
        and name not in ("VENV", "RUN", "SET", "CONFIG", "PYTHON", "OMP_NUM_THREADS")
    }
    return environment | {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / ".cache"),
        "PATH": f"{venv / 'bin'}{os.pathsep}{environment['PATH']}",
    }


def runs(path: str, names: list[str]) -> set[str]:
    """Returns what to leave out of a folder because runs made it: in data/, everything but its page."""
    return {name for name in names if name != "README.md"} if Path(path) == ROOT / "data" else set()


def run_all(commands: list[tuple[str, str]], folder: Path, environment: dict[str, str]) -> None:
    for language, text in commands:
        if text in EXEMPT:
            continue
        done = subprocess.run(
            [language, "-c", text], cwd=folder, env=environment, capture_output=True, text=True
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"README.md: exit code {done.returncode} of\n{text}\n{said[-3000:]}"
        assert "Traceback" not in said


def test_every_make_target_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {*re.findall(r"^([a-z_-]+):", makefile, flags=re.MULTILINE), *MAIN_CHAIN}
    for words in re.findall(r"\bmake((?: [a-z_-]+)+)`", PAGE) + re.findall(
        r"^make (.*)$", PAGE, flags=re.MULTILINE
    ):
        named = {word for word in words.split() if re.fullmatch(r"[a-z_-]+", word)}
        assert named <= targets, f"README.md names make {named - targets}"
    rows = re.findall(r"^\| (\w+) \| .* \| `make (\w+)` \|$", PAGE, flags=re.MULTILINE)
    assert [name for name, _ in rows] == [target for _, target in rows] == list(MAIN_CHAIN)


def test_the_stage_table_says_what_the_stages_read() -> None:
    config = load_config(Config, ROOT / "configs" / "demo.yaml", [])
    for name, reads in re.findall(r"^\| (\w+) \| ([^|]*) \| .* \| `make \w+` \|$", PAGE, flags=re.MULTILINE):
        inputs = importlib.import_module(f"stages.{name}").STAGE.inputs(config)
        assert reads == (", ".join(inputs) or "nothing"), f"stage {name}"


def test_the_exit_codes_are_those_of_the_program() -> None:
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, flags=re.MULTILINE)] == list(ExitCode)


@pytest.mark.slow
def test_every_command_works_on_a_tiny_run(tmp_path: Path) -> None:
    environment = copy_of_the_project(tmp_path / "project") | {"OMP_NUM_THREADS": "1"}
    commands = [(of, shrunk(text) if of == "bash" else text) for of, text in commands_of(PAGE)]
    run_all(commands, tmp_path / "project", environment)
    made = {path.name for path in (tmp_path / "project" / "data" / "demo").iterdir()}
    assert {"summary.json", "summary.html", "critic_report", "actor"} <= made
    planned_only = tmp_path / "project" / "data" / "mine" / "labels" / "plan.json"
    assert not planned_only.exists()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_command_works_to_the_letter(tmp_path: Path) -> None:
    environment = copy_of_the_project(tmp_path / "project")
    run_all(commands_of(PAGE), tmp_path / "project", environment)
