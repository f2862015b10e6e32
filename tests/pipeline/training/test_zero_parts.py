"""Parts of weights: written once by their owner, read by whoever owns them next. ZeRO is a stand-in here."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open

from pipeline.errors import ArtifactError
from pipeline.ids import file_sha256
from pipeline.training import zero_parts
from pipeline.training.zero_parts import KINDS, MOMENTS, Part, load_parts, own_parts, save_parts

SHAPES = {"embedding": (8, 4), "large": (16, 8), "b": (4, 4), "norm": (3,)}
SIZES = {f"{kind}.{name}": torch.Size(shape).numel() for kind in KINDS for name, shape in SHAPES.items()}


def whole(kind: str, name: str) -> torch.Tensor:
    """Returns what a flattened tensor holds: numbers that no other has."""
    size = torch.Size(SHAPES[name]).numel()
    return torch.arange(size) + 1000.0 * (1 + KINDS.index(kind)) + 10000.0 * list(SHAPES).index(name)


def zero2(rank: int, world: int) -> tuple[Any, dict[str, Any]]:
    """All weights in a row, cut into equal partitions whose last one is padded."""
    total = sum(torch.Size(shape).numel() for shape in SHAPES.values())
    size = -(-total // world)
    first, last = rank * size, (rank + 1) * size
    flat, place, named = torch.zeros(size), 0, {}
    for name, shape in SHAPES.items():
        stop = place + torch.Size(shape).numel()
        low, high = max(place, first), min(stop, last)
        mapping = None
        if low < high:
            mapping = SimpleNamespace(
                param_group_index=0,
                hp_fragment_address=SimpleNamespace(start=low - first, numel=high - low),
                lp_fragment_address=SimpleNamespace(start=low - place, numel=high - low),
            )
        named[name], place = SimpleNamespace(_hp_mapping=mapping), stop
    state = {flat: {kind: torch.zeros(size) for kind in MOMENTS}}
    return SimpleNamespace(
        single_partition_of_fp32_groups=[flat], optimizer=SimpleNamespace(state=state)
    ), named


def zero3(rank: int, world: int) -> tuple[Any, dict[str, Any]]:
    """Each weight cut into equal runs, padded at the end."""
    positions, place, named = [], 0, {}
    for number, (name, shape) in enumerate(SHAPES.items()):
        numel = torch.Size(shape).numel()
        size = -(-numel // world)
        positions.append((0, place, size))
        place += size
        named[name] = SimpleNamespace(ds_id=number, ds_numel=numel)
    flat = torch.zeros(place)
    zero = SimpleNamespace(
        fp32_partitioned_groups_flat=[flat],
        grad_position=positions,
        get_param_id=lambda parameter: parameter.ds_id,
        optimizer=SimpleNamespace(state={flat: {kind: torch.zeros(place) for kind in MOMENTS}}),
    )
    return zero, named


def parts_of(make: Any, rank: int, world: int) -> dict[tuple[str, str], Part]:
    zero, named = make(rank, world)
    return {(kind, n): part for kind in KINDS for n, part in own_parts(zero, named, rank, kind).items()}


def flat_names(parts: Mapping[tuple[str, str], Part]) -> dict[str, Part]:
    return {f"{kind}.{name}": part for (kind, name), part in parts.items()}


def saved(folder: Path, make: Any, world: int) -> dict[str, Any]:
    files: dict[str, Any] = {}
    for rank in range(world):
        parts = parts_of(make, rank, world)
        for (kind, name), part in parts.items():
            part.values.copy_(whole(kind, name)[part.start : part.stop])
        files |= save_parts(folder, flat_names(parts), f"part-{rank:05d}")
    return files


@pytest.mark.parametrize("make", [zero2, zero3])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_element_is_some_rank_s_own_and_of_no_other(make: Any, world: int) -> None:
    found = [parts_of(make, rank, world) for rank in range(world)]
    for kind in KINDS:
        for name in SHAPES:
            parts = [of_rank[kind, name] for of_rank in found if (kind, name) in of_rank]
            owned = [place for part in parts for place in range(part.start, part.stop)]
            assert owned == list(range(torch.Size(SHAPES[name]).numel()))


@pytest.mark.parametrize(("first", "before"), [(zero2, 2), (zero3, 3)])
@pytest.mark.parametrize(("then", "after"), [(zero2, 3), (zero3, 2), (zero3, 1)])
def test_parts_are_read_by_other_ranks_under_another_zero_and_nothing_is_read_twice(
    first: Any, before: int, then: Any, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, first, before)
    read: list[int] = []

    class Counting:
        def __init__(self, path: Path, kind: str) -> None:
            self._file = safe_open(path, kind)

        def __enter__(self) -> Any:
            opened = self._file.__enter__()

            class Slice:
                def __init__(self, name: str) -> None:
                    self._slice = opened.get_slice(name)
                    self.get_shape = self._slice.get_shape

                def __getitem__(self, run: slice) -> torch.Tensor:
                    found: torch.Tensor = self._slice[run]
                    read.append(found.numel())
                    return found

            return SimpleNamespace(metadata=opened.metadata, keys=opened.keys, get_slice=Slice)

        def __exit__(self, *error: Any) -> None:
            self._file.__exit__(*error)

    monkeypatch.setattr(zero_parts, "safe_open", Counting)
    for rank in range(after):
        parts = parts_of(then, rank, after)
        load_parts(tmp_path, flat_names(parts), SIZES)
        for (kind, name), part in parts.items():
            assert torch.equal(part.values, whole(kind, name)[part.start : part.stop])
    numbers = sum(torch.Size(shape).numel() for shape in SHAPES.values())
    assert sum(read) == len(KINDS) * numbers  # of all ranks together


def test_files_hold_no_more_than_a_part_and_are_vouched_for_by_whoever_wrote_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 4 * 50  # of fp32 numbers: several small parts, less than a large one
    monkeypatch.setattr(zero_parts, "PART_BYTES", most)
    files = saved(tmp_path, zero3, 2)
    assert len(files) > 4
    assert files.keys() == {path.name for path in tmp_path.iterdir()}
    for name, facts in files.items():
        assert facts == {"bytes": (tmp_path / name).stat().st_size, "sha256": file_sha256(tmp_path / name)}
        with safe_open(tmp_path / name, "pt") as tensors:
            sizes = [4 * tensors.get_slice(key).get_shape()[0] for key in tensors.keys()]  # noqa: SIM118
        assert len(sizes) == 1 or sum(sizes) <= most


def test_a_checkpoint_that_lacks_a_file_or_knows_no_starts_is_refused(tmp_path: Path) -> None:
    files = saved(tmp_path, zero2, 2)
    (tmp_path / max(files)).unlink()
    with pytest.raises(ArtifactError, match=r"lacks [1-9]\d* numbers of this model's .* has 0 that are not"):
        load_parts(tmp_path, flat_names(parts_of(zero3, 1, 2)), SIZES)


@pytest.mark.parametrize("sizes", [SIZES | {"weight.b": 9}, {k: v for k, v in SIZES.items() if "b" not in k}])
def test_a_checkpoint_of_a_model_that_has_more_is_refused(sizes: dict[str, int], tmp_path: Path) -> None:
    saved(tmp_path, zero3, 2)
    parts = {
        name: Part(part.start, part.values[: max(0, sizes[name] - part.start)])
        for name, part in flat_names(parts_of(zero2, 0, 1)).items()
        if name in sizes
    }
    surplus = sum(SIZES.values()) - sum(sizes.values())
    with pytest.raises(ArtifactError, match=f"lacks 0 numbers of this model's .* has {surplus} that are not"):
        load_parts(tmp_path, parts, sizes)
