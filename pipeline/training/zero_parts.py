"""What of the weights one DeepSpeed rank owns under ZeRO 2 and 3, and its files: no rank asks another.

ZeRO gives each rank a run of a weight's elements, or none: in fp32, with its moments. What leaves the ranks
goes from where it lies, each run once, so nothing is gathered first.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from pipeline.artifacts.checkpoints import PART_BYTES
from pipeline.artifacts.disk import made_durable
from pipeline.errors import ArtifactError
from pipeline.processes.life import sign_of_life

WEIGHT = "weight"
MOMENTS = ("exp_avg", "exp_avg_sq")
KINDS = (WEIGHT, *MOMENTS)


@dataclass(frozen=True, slots=True)
class Part:
    """A run of elements of a flattened tensor."""

    start: int  # in the whole tensor
    values: torch.Tensor  # a view of what the optimizer works on

    @property
    def stop(self) -> int:
        """The first element after it."""
        return self.start + self.values.numel()


def own_parts(zero: Any, named: Mapping[str, Any], rank: int, kind: str = WEIGHT) -> dict[str, Part]:
    """Returns this rank's parts of the fp32 weights, or of one of their moments, by the weight's name.

    `zero` is DeepSpeed's optimizer. They are views of what it holds at the moment: ask again after a call
    that moves it.
    """
    parts = {}
    for name, parameter in named.items():
        flat, place, start, size = _where(zero, parameter, rank)
        if size > 0:
            whole = flat if kind == WEIGHT else zero.optimizer.state[flat][kind]
            parts[name] = Part(start, whole.detach().narrow(0, place, size))
    return parts


def _where(zero: Any, parameter: Any, rank: int) -> tuple[torch.Tensor, int, int, int]:
    """Returns a rank's partition that holds a weight, the place there, the run's start, and its size."""
    if hasattr(parameter, "ds_id"):  # ZeRO 3: each weight is cut into equal runs, the last ones padded
        group, place, size = zero.grad_position[zero.get_param_id(parameter)]
        start = rank * size
        return zero.fp32_partitioned_groups_flat[group], place, start, min(size, parameter.ds_numel - start)
    found = parameter._hp_mapping  # ZeRO 2: all weights in a row are
    if found is None:
        return torch.empty(0), 0, 0, 0
    flat = zero.single_partition_of_fp32_groups[found.param_group_index]
    here = found.hp_fragment_address
    return flat, here.start, found.lp_fragment_address.start, here.numel


def refresh_weights(zero: Any) -> None:
    """Makes the weights that compute those of the fp32 copies, as a step does; all ranks take part."""
    if not hasattr(zero, "fp32_partitioned_groups_flat"):
        zero.update_lp_params()
        return
    zero._partition_all_parameters()
    for group in range(len(zero.fp32_partitioned_groups_flat)):
        zero._reassign_or_swap_out_partitioned_parameters(group)
    if zero.persistent_parameters:
        zero.persistent_parameters[0].all_gather(zero.persistent_parameters)


def save_parts(folder: Path, parts: Mapping[str, Part], prefix: str) -> dict[str, dict[str, Any]]:
    """Writes parts into files `<prefix>-00000.safetensors` on, durably; returns what `made_durable` says.

    Files have at most `PART_BYTES`, or one larger part: no more lies in host memory at once. Each names where
    its parts start.
    """
    files: dict[str, dict[str, Any]] = {}
    for number, some in zip(count(), _batches(parts), strict=False):
        path = folder / f"{prefix}-{number:05d}.safetensors"
        starts = {name: str(part.start) for name, part in some.items()}
        save_file({name: part.values.cpu() for name, part in some.items()}, path, metadata=starts)
        files[path.name] = made_durable(path)
        sign_of_life("a part saved")
    return files


def _batches(parts: Mapping[str, Part]) -> Iterator[dict[str, Part]]:
    some: dict[str, Part] = {}
    for name, part in parts.items():
        if some and sum(p.values.nbytes for p in some.values()) + part.values.nbytes > PART_BYTES:
            yield some
            some = {}
        some[name] = part
    if some:
        yield some


def load_parts(folder: Path, parts: Mapping[str, Part], sizes: Mapping[str, int]) -> None:
    """Fills parts from what ranks have saved, however many there were; reads what lies in them and no more.

    `sizes` has the number of elements of every whole tensor, parts of which may be other ranks'. Raises
    ArtifactError if the files lack an element of a part, or hold one that no tensor has.
    """
    missing, unknown = sum(part.values.numel() for part in parts.values()), 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as tensors:
            starts = tensors.metadata() or {}
            for name in tensors.keys() & starts.keys():
                sign_of_life("a part loaded")
                stored, first = tensors.get_slice(name), int(starts[name])
                last = first + stored.get_shape()[0]
                unknown += max(0, last - max(first, sizes.get(name, 0)))
                if (part := parts.get(name)) is None:
                    continue
                low, high = max(part.start, first), min(part.stop, last)
                if low < high:
                    part.values[low - part.start : high - part.start] = stored[low - first : high - first]
                    missing -= high - low
    if missing or unknown:
        raise ArtifactError(
            f"{folder} lacks {missing} numbers of this model's weights and moments, and has {unknown} that "
            "are not its: it is of another model or an earlier version. Next: the stage again with --fresh"
        )
