"""The commands and examples of docs/export.md, run; those of TRL and verl by tests/env/adapters."""

import re
import shlex
from pathlib import Path

import pytest

from stages.command import main
from tests.exports import make_run

PAGE = (Path(__file__).parents[1] / "docs" / "export.md").read_text("utf-8")
COMMAND_LINES = [
    shlex.split(line)[1:]
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def is_of_adapters(example: str) -> bool:
    return "trl" in example or "verl" in example


def test_every_command_and_example_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made = make_run(tmp_path / "made")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "demo").symlink_to(made.run_dir)
    (tmp_path / "out").mkdir()
    for argv in COMMAND_LINES:
        assert main(argv) == 0, argv
    capsys.readouterr()
    [of_openai, of_sqlite] = [example for example in EXAMPLES if not is_of_adapters(example)]
    exec(compile(of_openai, "docs/export.md", "exec"), {})
    won = [r for r in made.bare if r.reward == 1.0]
    assert capsys.readouterr().out == "".join(f"1.0 {r.messages[0]['content']}\n" for r in won)
    exec(compile(of_sqlite, "docs/export.md", "exec"), {})
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert sum(int(line[-2]) for line in printed) == len(made.rollouts)


def test_the_page_has_every_form() -> None:
    told = {argv[argv.index("--to") + 1] for argv in COMMAND_LINES}
    rows = re.findall(r"^\| (\w+) \| `", PAGE, re.MULTILINE)
    assert told == {"datasets", "openai", "sessions", "sqlite", "trl", "verl"}
    assert told - {"datasets"} == {*rows}
