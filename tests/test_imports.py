"""Imports run one way: stages -> {critics, env} -> pipeline; nothing heavy loads before it is needed."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from env.catalog import BUILT_IN

ROOT = Path(__file__).parents[1]
OF_FAMILIES = re.compile(
    r"\b(?:compan(?:y|ies)|departments?|equations?|arithmetic problems?|HumanEval|gsm8k)\b", re.I
)
MAY_IMPORT = {
    "pipeline": {"pipeline"},
    "critics": {"critics", "pipeline"},
    "env": {"env", "pipeline"},
    "stages": {"stages", "critics", "env", "pipeline"},
}
BACKENDS = (
    "pipeline.engines.transformers.",
    "pipeline.engines.scripted.",
    "pipeline.engines.slots.",
    "pipeline.engines.vllm.",
    "pipeline.training.torch.",
    "pipeline.training.network.",
    "pipeline.training.deepspeed.",
    "pipeline.training.deepspeed_rank.",
)
HEAVY = ("vllm", "deepspeed", "wandb", "torch", "transformers", "matplotlib", "sklearn", "datasets", "pandas")


def sources(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found
    return found


def imported(path: Path) -> Iterator[str]:
    """Yields the module names that a file imports anywhere, inside functions and type checks too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports by dots, where a name says from where"
            yield from (str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names))


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    assert not [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources(package)
        for name in imported(path)
        if name.split(".")[0] in MAY_IMPORT and name.split(".")[0] not in MAY_IMPORT[package]
    ]


def test_only_stages_import_engine_and_training_backends() -> None:
    users = {
        str(path.relative_to(ROOT))
        for package in MAY_IMPORT
        for path in sources(package)
        for name in imported(path)
        if f"{name}.".startswith(BACKENDS) and path.parent.name not in ("engines", "training")
    }
    assert users == {"stages/wiring/build.py"}


def test_stages_import_each_other_only_for_what_they_share() -> None:
    """A stage hands tables to the next one; it never calls its `make`."""
    assert not [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources("stages")
        for name in imported(path)
        if name.startswith("stages.") and name.endswith((".make", ".STAGE"))
    ]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_no_file_is_longer_than_300_lines_and_of_the_stages_150(package: str) -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text("utf-8").splitlines()) for p in sources(package)}
    most = 150 if package == "stages" else 300
    assert not {name: length for name, length in lengths.items() if length > most}


LIGHT = {
    "pipeline": r"pipeline\.(artifacts\.|cli\.|credit|config|settings|tables|statistics)",
    "critics": r"critics\.(labels|frozen\.contract|fit\.(data|rows|splits))",
    "env": r"env\.(?!adapters\.(gymnasium|verl))",
    "stages": r"stages\.(settings|command|bodies\.(rollouts|labels|evaluation)|(?!summary)[a-z_]+$)",
}
"""What loads nothing heavy, besides the packages themselves: a finished stage, a dry run, `vdapo status`, and
stages that only sample where players have processes of their own. A summary draws, so it loads matplotlib."""


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_importing_a_package_an_entry_or_what_comes_before_a_plan_loads_nothing_heavy(package: str) -> None:
    paths = [path.relative_to(ROOT).with_suffix("") for path in sources(package)]
    modules = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    folders = {name for name in modules if (ROOT / name.replace(".", "/")).is_dir()}
    names = [name for name in modules if name in folders or re.match(LIGHT[package], name)]
    assert len(names) > len(folders)
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        f"    heavy = [h for h in {HEAVY!r} if h in sys.modules]\n"
        "    assert not heavy, (name, heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["pipeline", "critics", "stages"])
def test_no_generic_file_imports_a_family_or_speaks_of_what_its_tasks_are_about(package: str) -> None:
    families = [name.partition(":")[0].rpartition(".")[0] for name in BUILT_IN.values()]
    found = []
    for path in sources(package):
        found += [
            f"{path}: {name}"
            for name in imported(path)
            if f"{name}.".startswith(tuple(f"{f}." for f in families))
        ]
        text = path.read_text("utf-8").replace("_", " ")
        found += [f"{path}: {word}" for word in OF_FAMILIES.findall(text)]
    assert not found


def test_a_process_that_plays_loads_no_scikit_learn() -> None:
    code = "import sys, stages.wiring.player; assert not {'sklearn', 'pandas'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
