"""A base that demonstrations train: who reads its weights."""

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
