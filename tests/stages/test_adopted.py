"""A base that is taken as it is: what of its folder becomes the policy's."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from stages.bodies.sft import adopt


def test_an_adopted_base_leaves_behind_weights_that_no_engine_reads(tmp_path: Path) -> None:
    base, run = tmp_path / "base", tmp_path / "run"
    base.mkdir()
    for name in ("config.json", "model.safetensors", "consolidated.safetensors", "tokenizer.json", "a.bin"):
        (base / name).write_text(name)
    start = SimpleNamespace(output=lambda name: run / name, finish=lambda **facts: None)
    adopt(cast(Any, start), base)
    kept = {path.name for path in (run / "policy").iterdir()}
    assert kept == {"config.json", "model.safetensors", "tokenizer.json"}
