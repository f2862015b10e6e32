"""Buffers on the host are made once, of the size of a tensor, and unlocked before they are forgotten."""

from types import SimpleNamespace

import pytest
import torch

from pipeline.training.host_buffers import HostBuffers


def test_a_buffer_is_locked_once_and_unlocked_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    locked: dict[int, int] = {}

    def lock(address: int, size: int, flags: int) -> int:
        assert address not in locked
        locked[address] = size
        return 0

    driver = SimpleNamespace(
        cudaHostRegister=lock, cudaHostUnregister=lambda address: 0 if locked.pop(address) else 1
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    monkeypatch.setattr(
        torch.cuda, "check_error", lambda error: None if error == 0 else pytest.fail("refused")
    )
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    buffers, tensor = HostBuffers(), torch.ones(5, dtype=torch.bfloat16)
    assert not buffers.made
    first = buffers.of("a", tensor)
    assert buffers.of("a", tensor) is first
    buffers.of("b", tensor[:3])
    buffers.of("none", tensor[:0])
    assert sorted(locked.values()) == [6, 10]
    assert (first.shape, first.dtype) == (tensor.shape, tensor.dtype)
    buffers.unlock()
    assert not locked
    assert not buffers.made


def test_what_lies_on_the_host_stays_where_it_is() -> None:
    tensor = torch.ones(2)
    assert HostBuffers().copy("a", tensor) is tensor
