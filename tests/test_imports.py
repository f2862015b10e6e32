"""Imports run one way: stages -> {critics, env} -> pipeline; nothing heavy loads before it is needed."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from env.catalog import BUILT_IN

ROOT = Path(__file__).parents[1]
WORDS_OF_FAMILIES = re.compile(
    r"\b(?:phones?|compan(?:y|ies)|departments?|customers?|equations?|algebra|gsm8k|programs|programming|"
    r"unit tests?|HumanEval|MBPP|MMLU|multiple choice)\b",
    re.IGNORECASE,
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
HEAVY = (
    "vllm",
    "deepspeed",
    "wandb",
    "torch",
    "transformers",
    "matplotlib",
    "sklearn",
    "datasets",
    "pandas",
    "ray",
)


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


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_folders_of_a_package_import_each_other_one_way(package: str) -> None:
    """A file beside the folders counts as one; `TopologicalSorter` raises where some stand in a circle."""
    below: dict[str, set[str]] = {}
    for path in sources(package):
        own = path.relative_to(ROOT / package).parts[0].removesuffix(".py")
        names = (name.split(".") for name in imported(path))
        found = {parts[1] for parts in names if parts[0] == package and len(parts) > 1} - {own}
        below.setdefault(own, set()).update(found)
    assert len(list(TopologicalSorter(below).static_order())) >= len(below) > 2


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
    "pipeline": r"pipeline\.(artifacts\.|cli\.|credit|config|runner|settings|tables|statistics)",
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


def of_families(path: Path) -> list[str]:
    """Returns what a file says of built-in environments: names of their modules, words of their tasks."""
    text = path.read_text("utf-8")
    modules = {offer.partition(":")[0].rpartition(".")[0] for offer in BUILT_IN.values()}
    return [module for module in modules if module in text or f"from env import {module[4:]}" in text] + [
        found[0] for found in WORDS_OF_FAMILIES.finditer(text.replace("_", " "))
    ]


def test_no_generic_file_imports_a_family_or_speaks_of_what_its_tasks_are_about() -> None:
    files = [
        path
        for package in ("pipeline", "critics", "stages")
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".jinja")
    ]
    assert len(files) > 100
    assert {str(path): found for path in files if (found := of_families(path))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "from env.math.answers import extract",
        "import env.math",
        "from env import code",
        'resolve_name("env.short.offer:SHORT")',
        'ERROR = "test_unseen_company"',
        "Two equations.",
        "# runs programs",
    ],
)
def test_a_generic_file_that_knows_a_family_would_be_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "generic.py").write_text(text)
    assert len(of_families(tmp_path / "generic.py")) == 1


def test_a_process_that_plays_loads_no_scikit_learn() -> None:
    code = "import sys, stages.wiring.player; assert not {'sklearn', 'pandas'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
