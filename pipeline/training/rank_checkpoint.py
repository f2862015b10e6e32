"""A rank's part of a checkpoint: whole tensors, so that any number of ranks can read them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from pipeline.artifacts.checkpoints import PART_BYTES
from pipeline.ids import file_sha256

MOMENTS = ("exp_avg", "exp_avg_sq")


def whole_tensor(parameter: torch.nn.Parameter, kind: str = "weight") -> torch.Tensor:
    """Returns a parameter's fp32 master copy, or one of its moments, from the parts of all ranks."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    if kind == "weight":
        return safe_get_full_fp32_param(parameter)
    return safe_get_full_optimizer_state(parameter, kind)


def save_share(
    named: Sequence[tuple[str, torch.nn.Parameter]], folder: Path, rank: int, world: int
) -> dict[str, str]:
    """Writes a rank's share of the tensors, weights and moments; returns file name -> SHA-256.

    In files of at most `PART_BYTES`, or of one larger tensor: no more lies in host memory at once.
    """
    digests: dict[str, str] = {}
    part: dict[str, torch.Tensor] = {}

    def write() -> None:
        path = folder / f"part-{rank:05d}-of-{world:05d}-{len(digests):05d}.safetensors"
        save_file(part, path)
        digests[path.name] = file_sha256(path)
        part.clear()

    for place, (name, parameter) in enumerate(named):
        for kind in ("weight", *MOMENTS):
            whole = whole_tensor(parameter, kind)  # all ranks take part
            if place % world == rank:
                if part and sum(t.nbytes for t in part.values()) + whole.nbytes > PART_BYTES:
                    write()
                part[f"{kind}.{name}"] = whole.cpu().contiguous()
            del whole
    if part:
        write()
    return digests


def load_shares(
    named: Mapping[str, torch.nn.Parameter], files: Sequence[Path], device: torch.device, rank: int
) -> None:
    """Takes weights and moments of all ranks' files; DeepSpeed keeps this rank's part."""
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

    for file in files:
        with safe_open(file, "pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 - not a dictionary
                kind, name = key.split(".", 1)
                value = tensors.get_tensor(key).to(device)
                if kind == "weight":
                    safe_set_full_fp32_param(named[name], value)  # the master copy only
                    _set_working_copy(named[name], value, rank)
                else:
                    safe_set_full_optimizer_state(named[name], value, kind)


def _set_working_copy(parameter: torch.nn.Parameter, value: torch.Tensor, rank: int) -> None:
    from deepspeed.runtime.zero import GatheredParameters

    with torch.no_grad():
        if not hasattr(parameter, "ds_id"):  # whole on every rank
            parameter.copy_(value)
            return
        with GatheredParameters([parameter], modifier_rank=0):
            if rank == 0:
                parameter.copy_(value)
