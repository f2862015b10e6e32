"""Weights in memory that another process of this machine can read: one copy, no file, nothing to leak."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each tensor lies in memory."""

    path: str  # opens the memory in any process of the same user, as long as its owner lives
    num_bytes: int  # of all tensors, gaps included
    tensors: tuple[tuple[str, str, tuple[int, ...], int], ...]  # name, dtype's name, shape, first byte


@dataclass(frozen=True, slots=True)
class Written:
    """Which bytes a process has written of memory that others write too."""

    path: str  # of the memory
    runs: tuple[tuple[int, int], ...]  # first byte, first byte after it


Files = Mapping[str, tuple[Path, str]]
"""Weights in safetensors files: name -> file, name in it."""


class SharedWeights:
    """An anonymous memory file; it goes when its owner does."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("vdapo-weights")
        self._path = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def write(self, weights: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None) -> Layout:
        """Copies floating-point tensors in, over what was there; returns where each lies.

        They are stored in `dtype`; None keeps each one's own.
        """
        layout = self.reserve({name: (dtype or w.dtype, tuple(w.shape)) for name, w in weights.items()})
        for name, target in read_shared(layout):
            target.copy_(weights[name].detach())
        return layout

    def reserve(self, tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> Layout:
        """Makes room for tensors, name -> (dtype, shape), over what was there; returns where each will lie.

        Whoever has them fills in what `read_shared` yields, one after another if need be.
        """
        entries, place = [], 0
        for name, (kind, shape) in tensors.items():
            entries.append((name, str(kind).removeprefix("torch."), shape, place))
            place += -(-math.prod(shape) * kind.itemsize // _ALIGNMENT) * _ALIGNMENT
        os.ftruncate(self._descriptor, max(place, 1))
        return Layout(self._path, max(place, 1), tuple(entries))

    def like(self, layout: Layout) -> Layout:
        """Makes room for what lies in another memory, perhaps of another node; returns where it will lie."""
        os.ftruncate(self._descriptor, layout.num_bytes)
        return replace(layout, path=self._path)

    def close(self) -> None:
        """Frees the memory once no reader has it open; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def mapped(path: str) -> mmap.mmap:
    """Returns all bytes of a shared memory."""
    with open(path, "r+b", buffering=0) as file:  # torch has no read-only tensors
        return mmap.mmap(file.fileno(), 0)


class Targets:
    """The tensors of a shared memory, for a process that writes runs of them: `written` says which."""

    def __init__(self, layout: Layout) -> None:
        self._tensors = dict(read_shared(layout))
        self._first = {name: first for name, _, _, first in layout.tensors}
        self._path = layout.path
        self._runs: list[tuple[int, int]] = []

    @property
    def names(self) -> set[str]:
        """Of the tensors."""
        return set(self._tensors)

    def write(self, name: str, start: int, values: torch.Tensor) -> None:
        """Copies values to a tensor's elements from `start` on, counted in the flattened tensor."""
        tensor = self._tensors[name].view(-1)
        tensor[start : start + values.numel()] = values.view(-1)
        first = self._first[name] + start * tensor.itemsize
        self._runs.append((first, first + values.numel() * tensor.itemsize))

    def shape(self, name: str) -> torch.Size:
        """Returns the shape of a tensor."""
        return self._tensors[name].shape

    @property
    def written(self) -> Written:
        """All that was written."""
        return Written(self._path, tuple(self._runs))


def read_shared(layout: Layout) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (name, tensor); the tensors are views of the shared memory, valid until it is written again."""
    import torch

    memory = mapped(layout.path)
    for name, kind, shape, offset in layout.tensors:
        dtype, count = getattr(torch, kind), math.prod(shape)
        if count == 0:  # torch makes no empty view
            yield name, torch.empty(shape, dtype=dtype)
        else:
            yield name, torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)


def read_files(files: Files) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (name, tensor); the tensors are views of mapped files, whose memory is the system's to drop."""
    from safetensors import safe_open

    for path in sorted({path for path, _ in files.values()}):
        with safe_open(path, "pt") as stored:
            for name, (where, key) in files.items():
                if where == path:
                    yield name, stored.get_tensor(key)
