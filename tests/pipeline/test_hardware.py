"""What a machine says that it has."""

import pytest

import pipeline.hardware
from pipeline.errors import ConfigError
from pipeline.hardware import free_gpu_memory


def test_a_gpu_that_cannot_be_used_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = "raise RuntimeError('The NVIDIA driver on your system is too old (found version 12040)')"
    monkeypatch.setattr(pipeline.hardware, "_ASK", ask)
    with pytest.raises(ConfigError, match=r"driver on your system is too old .*Next: see whether nvidia-smi"):
        free_gpu_memory()


def test_each_visible_gpu_has_its_own_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.hardware, "_ASK", "print(79.5, 3.25)")
    assert free_gpu_memory() == [79.5, 3.25]
