"""What DeepSpeed's ZeRO holds on a GPU, moved to host memory and back."""

from typing import Any

import torch

from pipeline.training.host_buffers import Copy, HostBuffers
from pipeline.training.zero_parts import MOMENTS


class ZeroMoves:
    """Moves one rank's master copy, moments and weights, each to a buffer of its own.

    Args:
        engine: DeepSpeed's, whose optimizer has moments already.
        flat: the master copy's flat parts, which moments belong to.
        frozen: weights that are not trained, by name.
        on_host: master copy and moments never leave the host.
    """

    def __init__(
        self, engine: Any, flat: list[torch.Tensor], frozen: dict[str, torch.nn.Parameter], on_host: bool
    ) -> None:
        self._engine, self._flat, self._frozen, self._on_host = engine, flat, frozen, on_host
        self._buffers = HostBuffers()
        # ZeRO 3 moves its master copy for its own Adam only.
        self._moves_master = hasattr(engine.optimizer, "fp32_partitioned_groups_flat") and not on_host

    def leave(self) -> None:
        """Frees the GPU; its last copies may be under way."""
        from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum

        states = set(OffloadStateTypeEnum)
        if not self._on_host:
            states -= {OffloadStateTypeEnum.optim_states}
        if self._moves_master:
            states -= {OffloadStateTypeEnum.hp_params}
        if self._frozen:  # DeepSpeed would look for them beside the trained ones
            states -= {OffloadStateTypeEnum.lp_params}
        self._move(self._buffers.copy)
        self._engine.offload_states(include=states, pin_memory=self._lends_buffers())

    def come_back(self, device: torch.device) -> None:
        """Undoes `leave`."""
        self._engine.reload_states()
        self._move(lambda _, tensor: tensor.to(device, non_blocking=True))

    def _move(self, copy: Copy) -> None:
        for i, flat in enumerate(self._flat) if not self._on_host else ():
            moments = self._engine.optimizer.optimizer.state[flat]
            moments |= {kind: copy((kind, i), moments[kind]) for kind in MOMENTS}
            if self._moves_master:
                flat.data = copy(("hp", i), flat.data)
        for name, parameter in self._frozen.items():
            held = getattr(parameter, "ds_tensor", parameter)
            held.data = copy(name, held.data)

    def _lends_buffers(self) -> bool:
        """Gives ZeRO 2 buffers to leave to, which it would else make anew each time and forget."""
        zero = self._engine.optimizer
        if not hasattr(zero, "bit16_groups_flat") or not zero.bit16_groups_flat[0].is_cuda:
            return False
        leaving = {} if self._on_host else {"hp": zero.single_partition_of_fp32_groups}
        leaving |= {} if self._frozen else {"lp": zero.bit16_groups_flat}
        for name, tensors in leaving.items():
            buffers = [self._buffers.of((name, i), tensor) for i, tensor in enumerate(tensors)]
            setattr(zero, f"{name}_params_pin_buffers", buffers)
        return True
