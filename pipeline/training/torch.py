"""Training in one process with plain torch: AdamW, fp32, deterministic on a CPU.

The model is a Hugging Face decoder: a causal language model as a policy, or one with a `score` layer of
two numbers per token as a critic. Rows are packed without padding.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers.utils.logging import disable_progress_bar

from pipeline.artifacts.checkpoints import FileFacts
from pipeline.errors import ArtifactError
from pipeline.hardware import GpuUse, gpu_use
from pipeline.models.folder import FILE_SIZE
from pipeline.training.host_buffers import Copy, HostBuffers
from pipeline.training.lora import add_adapters, merged_weights, without_adapters
from pipeline.training.network import HEAD, Head, Network, adamw_groups
from pipeline.training.packing import Batch, Loss, micro_batches, summed
from pipeline.training.protocol import TrainingRow, diverged, read_state, write_state
from pipeline.training.side_by_side import SideBySide

_WEIGHTS, _OPTIMIZER = "weights.safetensors", "optimizer.safetensors"


class TorchTrainer:
    """A `Trainer` in this process, of a model that is trained in place.

    Dropout is off at all times, so nothing here is random: a resumed run is the run, bit for bit.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        head: Head,
        learning_rate: Callable[[int], float] | None = None,
        weight_decay: float = 0.0,
        grad_clip: float = 1.0,
        micro_batch_tokens: int = 16384,
        lora_rank: int = 0,
        lora_alpha: int = 32,
        **network: Any,
    ) -> None:
        """Takes over a model.

        Args:
            model: fp32, in Hugging Face form.
            head: what a forward pass yields, see `Network`.
            learning_rate: number of updates taken -> rate of the next; None for a model that only scores.
                It may be replaced between phases.
            weight_decay: AdamW's, decoupled; it spares vectors (norms, biases).
            grad_clip: bound on the gradient's norm.
            micro_batch_tokens: tokens per forward pass; with two CPU threads or more, of two at a time.
            lora_rank: width of adapters that are trained in place of the weights; 0 trains the weights.
            lora_alpha: see `add_adapters`.
            network: further options of `Network`.
        """
        self._network = Network(model, head=head, **network)
        self.model: Any = model
        self._adapted = lora_rank > 0
        if self._adapted:
            add_adapters(model, lora_rank, lora_alpha)
        self.learning_rate = learning_rate
        self.num_updates = 0
        self._grad_clip = grad_clip
        self._micro_batch_tokens = micro_batch_tokens
        self._head_only = False
        self._home: torch.device | None = None  # where the model goes back to after `offload`
        self._buffers = HostBuffers()  # where it is meanwhile
        self._named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self._optimizer = torch.optim.AdamW(adamw_groups(self._named, weight_decay), fused=True)
        self._passes = SideBySide.on(self._device)

    def set_head_only(self, head_only: bool) -> None:
        """Trains a critic's head alone, or everything; see `Trainer`."""
        self._head_only = head_only
        for name, parameter in self._named.items():
            parameter.requires_grad_(name.startswith(HEAD) or not head_only)
            parameter.grad = None

    def update(self, rows: Sequence[TrainingRow], loss: Loss) -> dict[str, float]:
        """Takes one optimizer step on the sum of `loss` over rows; see `Trainer`."""
        if not rows or self.learning_rate is None:
            raise ValueError(f"an update needs rows (got {len(rows)}) and a trainer with a learning rate")
        self._optimizer.zero_grad(set_to_none=True)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        if (passes := self._passes) is None:
            sums = summed(self._batches(rows), self._network, loss, torch.Tensor.backward)
        else:
            sums = passes.summed(self._batches(rows), self._network, loss, trained)
        norm = float(torch.nn.utils.clip_grad_norm_(trained, self._grad_clip))
        if not (np.isfinite(sums["loss"]) and np.isfinite(norm)):
            self._optimizer.zero_grad(set_to_none=True)
            raise diverged(self.num_updates, sums["loss"], norm)
        rate = self.learning_rate(self.num_updates)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.num_updates += 1
        return sums | {"grad_norm": norm, "learning_rate": rate}

    def forward(self, rows: Sequence[TrainingRow], adapted: bool = True) -> list[dict[str, np.ndarray]]:
        """Returns each row's outputs without gradient, unpadded, in the order given; see `Trainer`."""
        batches = self._batches(rows)

        def one(batch: Batch) -> list[tuple[int, dict[str, np.ndarray]]]:
            with self._network.scoring():
                return list(batch.unpacked(self._network(batch)))

        found = map(one, batches) if self._passes is None else self._passes.map(one, batches)
        with nullcontext() if adapted else without_adapters(self.model):
            outputs = dict(pair for pairs in found for pair in pairs)
        return [outputs[i] for i in range(len(rows))]

    def _batches(self, rows: Sequence[TrainingRow]) -> Iterator[Batch]:
        """Brings the model home from `offload`; returns micro-batches beside it."""
        if (home := self._home) is not None:
            self._move(lambda _, tensor: tensor.to(home, non_blocking=True))
            self._home = None
        tokens = self._micro_batch_tokens
        if self._passes is not None:
            tokens = self._passes.capacity(rows, tokens)
        return (batch.to(self._device) for batch in micro_batches(rows, tokens))

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Returns the weights by Hugging Face name: the live tensors."""
        if self._adapted:
            return merged_weights(self.model)
        return {name: tensor.detach() for name, tensor in self.model.state_dict().items()}

    def save_checkpoint(self, folder: Path) -> FileFacts:
        """Writes weights.safetensors, optimizer.safetensors (both moments) and state.json.

        Weights are those that are trained: of a model with adapters, the adapters.
        """
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: p.detach().contiguous() for name, p in self._named.items()}, folder / _WEIGHTS)
        moments = {
            f"{kind}.{name}": tensor.contiguous()
            for name, p in self._named.items()
            for kind, tensor in self._optimizer.state.get(p, {}).items()
        }
        save_file(moments, folder / _OPTIMIZER)
        write_state(folder, {"num_updates": self.num_updates, "head_only": self._head_only})
        return {}

    def load_checkpoint(self, folder: Path) -> None:
        """Restores what `save_checkpoint` wrote: training goes on bit for bit; see `Trainer`."""
        state = read_state(folder)
        weights, moments = load_file(folder / _WEIGHTS), load_file(folder / _OPTIMIZER)
        shapes = {name: p.shape for name, p in self._named.items()}
        if shapes != {name: w.shape for name, w in weights.items()}:
            raise ArtifactError(f"{folder} holds another model's weights (names or shapes differ)")
        with torch.no_grad():
            for name, parameter in self._named.items():
                parameter.copy_(weights[name])
        self._optimizer.state.clear()
        for key, tensor in moments.items():
            kind, name = key.split(".", 1)
            parameter = self._named[name]
            self._optimizer.state[parameter][kind] = tensor.to(parameter.device)  # fused: the step too
        self.num_updates = int(state["num_updates"])
        self.set_head_only(state["head_only"])

    def export(self, folder: Path) -> None:
        """Writes the model in Hugging Face format (config, safetensors)."""
        disable_progress_bar()
        merged = dict(merged_weights(self.model, sums_on="cpu")) if self._adapted else None
        self.model.save_pretrained(folder, state_dict=merged, max_shard_size=FILE_SIZE)

    def offload(self) -> None:
        """Moves weights and moments to host memory until the next `update` or `forward`; see `Trainer`."""
        self._leave(self._buffers.copy)

    def _leave(self, copy: Copy) -> None:
        if self._device.type != "cpu":
            self._home = self._device
            self._move(copy)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # else the allocator keeps what was freed from the engine beside it

    def gpu_use(self) -> list[GpuUse]:
        """Returns what this process took of its GPU; see `Trainer`."""
        return gpu_use()

    def close(self) -> None:
        """Leaves the GPU; the model stays, it is the caller's."""
        self._leave(self._buffers.copy if self._buffers.made else lambda _, tensor: tensor.cpu())
        self._buffers.unlock()

    def _move(self, copy: Copy) -> None:
        for name, tensor in chain(self.model.named_parameters(), self.model.named_buffers()):
            tensor.data = copy(name, tensor.data)
        for name, parameter in self._named.items():
            moments = self._optimizer.state.get(parameter, {})
            moments |= {kind: copy((name, kind), tensor) for kind, tensor in moments.items()}

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device
