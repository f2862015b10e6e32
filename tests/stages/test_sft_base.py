"""A base that demonstrations train: who reads its weights."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.config import load_config
from pipeline.models import policy
from stages.bodies.sft import untrained
from stages.settings import Config
from stages.wiring import build
from tests.stages.conftest import Lab


def test_ranks_read_a_base_from_its_files_and_nobody_else_does(
    chain: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, given = chain.artifact("sft").path("policy"), dict[str, Any]()
    overrides = (f"sft.base={base}", "training.backend=deepspeed")
    start = SimpleNamespace(config=load_config(Config, Path(chain.config), overrides))
    monkeypatch.setattr(build, "DeepSpeedTrainer", lambda model, **options: given.update(options))
    monkeypatch.setattr(policy, "_load_model", lambda folder: pytest.fail(f"{folder} was read"))
    tokenizer, trainer_of = untrained(cast(Any, start), [], cast(Any, None), tmp_path)
    trainer_of(learning_rate=lambda done: 1e-3)
    assert {path.parent for path, _ in given["files"].values()} == {base}
    assert given["head"] == "policy"
    assert len(tokenizer) == len(policy.load_tokenizer(tmp_path))


def test_a_base_or_trunk_whose_weights_are_replaced_in_place_is_another_one(
    chain: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, lab = tmp_path / "base", chain.copy(tmp_path / "lab", "tasks")
    shutil.copytree(chain.run_dir / "sft" / "policy", base)
    adopted = (f"sft.base={base}", "sft.num_updates=0")
    assert lab.start("sft", *adopted) == 0
    assert lab.start("sft", *adopted) == 0  # up to date
    critic = chain.begun("critic", f"critic.trunk={base}").stage_key
    weights = base / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1  # of the last weight: names, shapes and size stay
    weights.write_bytes(content)
    capsys.readouterr()
    assert lab.start("sft", *adopted) == 3
    assert f"files.{weights}: " in capsys.readouterr().err
    assert chain.begun("critic", f"critic.trunk={base}").stage_key != critic
