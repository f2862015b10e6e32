"""docs/own-tasks.md, run: its rows, its YAML, its commands, and what they print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config import load_config
from stages.settings import Config

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(
    r"^```(\w+)\n(.*?)^```$", (ROOT / "docs" / "own-tasks.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
)


@pytest.mark.slow  # five stages, each a process that loads torch
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    said, shown = "", []
    own = next(text for language, text in BLOCKS if language == "yaml")
    (tmp_path / "own.yaml").write_text(own)
    for language, text in BLOCKS:
        if language == "python":
            exec(compile(text.replace('open("', f'open("{tmp_path}/'), "own-tasks.md", "exec"), {})
        elif language == "bash":
            said = ""
            for command in text.splitlines():
                words = [sys.executable, *command.split()[1:]]
                done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
                said += done.stdout + done.stderr
        elif language == "text" and said:
            assert [line for line in text.splitlines() if line.removesuffix("...") not in said] == []
            shown.append(text)
            said = ""
    assert len(shown) == 3


@pytest.mark.parametrize("text", [text for language, text in BLOCKS if language == "yaml"])
def test_every_configuration_of_the_page_is_accepted(tmp_path: Path, text: str) -> None:
    (tmp_path / "own.yaml").write_text(text)
    assert load_config(Config, tmp_path / "own.yaml").tasks.environment == "short"
