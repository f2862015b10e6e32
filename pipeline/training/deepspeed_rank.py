"""One rank of a DeepSpeed trainer in a process of its own: the only file that imports deepspeed."""

import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers.initialization import no_init_weights

from pipeline.artifacts.checkpoints import PART_BYTES
from pipeline.hardware import GpuUse, gpu_use
from pipeline.processes.life import sign_of_life
from pipeline.processes.shared_weights import Layout, SharedWeights, read_shared
from pipeline.training.network import Network, adamw_groups
from pipeline.training.packing import Batch, Loss, packed, summed
from pipeline.training.protocol import TrainingRow
from pipeline.training.rank_group import RankSetup, serve

MOMENTS = ("exp_avg", "exp_avg_sq")
EXCHANGE = timedelta(hours=12)
"""That an exchange between ranks may take; whether they hang is for the group to say, which sees them all."""
_PREFIX = "model."  # of the wrapped model's parameters in `Network`


def whole_tensor(parameter: torch.nn.Parameter, kind: str = "weight") -> torch.Tensor:
    """Returns a parameter's fp32 master copy, or one of its moments, from the parts of all ranks."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    if kind == "weight":
        return safe_get_full_fp32_param(parameter)
    return safe_get_full_optimizer_state(parameter, kind)


class Rank:
    """This rank's part of the model, its optimizer, and what the trainer may ask of it."""

    def __init__(self, setup: RankSetup, meeting: str) -> None:
        import transformers

        self._setup = setup
        self._rank = int(os.environ["RANK"])
        self._world = int(os.environ["WORLD_SIZE"])
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        self._device = torch.device("cpu")
        if torch.cuda.is_available():
            self._device = torch.device("cuda", self._rank)
            torch.cuda.set_device(self._device)
        if setup.trains:
            import deepspeed

            # Else it compiles what only its inference needs, under a lock that a killed rank leaves behind.
            deepspeed.ops.__compatible_ops__ = {}
            deepspeed.init_distributed(
                verbose=False,
                auto_mpi_discovery=False,
                timeout=EXCHANGE,
                init_method=f"file://{meeting}",
                rank=self._rank,
                world_size=self._world,
            )
        model_class = getattr(transformers, setup.model_class)
        config = model_class.config_class.from_dict(setup.model_config)
        with no_init_weights():  # memory that nobody writes to is not taken
            model = model_class(config).to(torch.float32)
        model.tie_weights()
        named = dict(model.named_parameters())
        self._read_weights(named)
        self._network = Network(model, head=setup.head, **setup.network)  # type: ignore[arg-type]
        self._parameters = dict(self._network.named_parameters())
        self._shared = SharedWeights()
        if not setup.trains:  # every rank scores its share with a whole copy, and talks to no other
            self._engine: Any = self._network.to(self._device)
            return
        zero = setup.options.config.get("zero_optimization", {})
        self._on_host = zero.get("offload_optimizer", {}).get("device", "none") != "none"
        optimizer = torch.optim.AdamW(
            adamw_groups(named, setup.weight_decay),
            lr=0.0,
            fused=True if self._on_host else None,  # one pass over host memory instead of a dozen
        )
        self._engine, *_ = deepspeed.initialize(
            model=self._network,
            optimizer=optimizer,
            config={
                **setup.options.config,
                "train_micro_batch_size_per_gpu": 1,
                "gradient_accumulation_steps": 1,
                "managed_gradient_accumulation": False,
                "gradient_clipping": setup.grad_clip,
                "zero_allow_untested_optimizer": True,
                "zero_force_ds_cpu_optimizer": False,  # torch's own fused AdamW, which needs no compiler
                "steps_per_print": 2**31,
            },
        )
        self._make_moments()

    def _read_weights(self, named: dict[str, torch.nn.Parameter]) -> None:
        for name, tensor in read_shared(self._setup.weights):
            named[name].data = tensor.to(self._device, copy=True)
            sign_of_life("a weight of the model")

    def _make_moments(self) -> None:
        """Gives every partition its moments now, so that a checkpoint can be saved or loaded any time."""
        zero = self._engine.optimizer
        self._flat = list(
            getattr(zero, "fp32_partitioned_groups_flat", ()) or zero.single_partition_of_fp32_groups
        )
        for flat in self._flat:
            zero.optimizer.state[flat] = {
                "step": torch.zeros(()),
                **{kind: torch.zeros_like(flat) for kind in MOMENTS},
            }
        self._link_moments()

    def _link_moments(self) -> None:
        """Lets ZeRO 2 find the moments of each weight; it does so once by itself, before an update."""
        zero = self._engine.optimizer
        if hasattr(zero, "_lazy_init_hp_params_optimizer_state"):
            zero._hp_optimizer_states_linked = False
            zero._lazy_init_hp_params_optimizer_state()

    def offload(self) -> None:
        """Frees this rank's GPU; what cannot be read again goes to host memory."""
        if not self._setup.trains:
            for _, parameter in self._named():
                parameter.data = parameter.new_empty(0)
        else:
            from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum

            states = set(OffloadStateTypeEnum)
            if self._moves_master_itself:
                states -= {OffloadStateTypeEnum.hp_params, OffloadStateTypeEnum.optim_states}
                self._move_master(torch.device("cpu"))
            # Pinned buffers would be made again each time, which costs more than it gains.
            self._engine.offload_states(include=states, pin_memory=False)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def reload(self) -> None:
        """Undoes `offload`."""
        if not self._setup.trains:
            self._read_weights(dict(self._named()))
            return
        self._engine.reload_states()
        if self._moves_master_itself:
            self._move_master(self._device)
        self._link_moments()

    @property
    def _moves_master_itself(self) -> bool:
        """ZeRO 3 moves master copy and moments for its own Adam only; on the host they stay there."""
        return hasattr(self._engine.optimizer, "fp32_partitioned_groups_flat") and not self._on_host

    def _move_master(self, device: torch.device) -> None:
        for flat in self._flat:
            flat.data = flat.data.to(device)
            moments = self._engine.optimizer.optimizer.state[flat]
            moments |= {kind: moments[kind].to(device) for kind in MOMENTS}

    def update(self, loss: Loss, rate: float, share: Sequence[Sequence[TrainingRow]]) -> dict[str, Any]:
        """Takes one step on this rank's micro-batches; returns its sums, and what all ranks agree on."""

        def backward(total: torch.Tensor) -> None:
            # DeepSpeed averages over ranks; our losses are sums over all of them.
            self._engine.backward(total * self._world, scale_wrt_gas=False)

        sums = summed(self._batches(share), self._engine, loss, backward)
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate if self._moves(group["head"]) else 0.0
        steps = self._steps()
        self._engine.step()  # skipped by DeepSpeed, on all ranks, if a gradient is not finite
        stepped = self._engine.was_step_applied()
        for flat, (step, head) in steps.items():
            if not stepped or not self._moves(head):  # a weight that stays has taken no step
                self._engine.optimizer.optimizer.state[flat]["step"].fill_(step)
        norm = self._engine.get_global_grad_norm() if stepped else float("nan")
        return {"sums": sums, "grad_norm": float(norm or 0.0), "stepped": stepped}

    def forward(self, share: Sequence[Sequence[TrainingRow]]) -> list[dict[str, np.ndarray]]:
        """Returns the outputs of each row, one micro-batch after another."""
        with torch.no_grad():
            return [row for b in self._batches(share) for _, row in b.unpacked(self._engine(b))]

    def _batches(self, share: Sequence[Sequence[TrainingRow]]) -> Iterator[Batch]:
        for rows in share:
            yield packed(rows, range(len(rows))).to(self._device)
            sign_of_life("a micro-batch")

    def gather_weights(self) -> Layout | None:
        """Returns where rank 0 put all weights, fp32 and by Hugging Face name."""
        named = self._named()
        shapes = {name: (torch.float32, tuple(getattr(p, "ds_shape", p.shape))) for name, p in named}
        layout = self._shared.reserve(shapes) if self._rank == 0 else None
        targets = dict(read_shared(layout)) if layout else {}
        for name, parameter in named:
            whole = whole_tensor(parameter)
            sign_of_life("a weight gathered")
            if name in targets:
                targets[name].copy_(whole)
            del whole  # no GPU has room for all of them
        return layout

    def save(self, folder: Path) -> None:
        """Writes this rank's share of whole weights and moments.

        In files of at most `PART_BYTES`, or of one larger tensor: no more lies in host memory at once.
        """
        numbers = count()
        part: dict[str, torch.Tensor] = {}

        def write() -> None:
            name = f"part-{self._rank:05d}-of-{self._world:05d}-{next(numbers):05d}.safetensors"
            save_file(part, folder / name)
            part.clear()

        for place, (name, parameter) in enumerate(self._named()):
            for kind in ("weight", *MOMENTS):
                whole = whole_tensor(parameter, kind)  # all ranks take part
                sign_of_life("a tensor gathered")
                if place % self._world == self._rank:
                    if part and sum(t.nbytes for t in part.values()) + whole.nbytes > PART_BYTES:
                        write()
                    part[f"{kind}.{name}"] = whole.cpu().contiguous()
                del whole
        if part:
            write()

    def load(self, folder: Path, steps: dict[str, int]) -> None:
        """Takes all ranks' tensors, of which DeepSpeed keeps this rank's part, and the steps taken."""
        from deepspeed.runtime.zero import GatheredParameters
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        named = dict(self._named())
        for file in sorted(folder.glob("part-*.safetensors")):
            with safe_open(file, "pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118 - not a dictionary
                    sign_of_life("a tensor loaded")
                    kind, name = key.split(".", 1)
                    value = tensors.get_tensor(key).to(self._device)
                    if kind == "weight":
                        safe_set_full_fp32_param(named[name], value)  # the master copy only
                        # Under ZeRO 2, where every rank has the whole weight, nothing is gathered.
                        with torch.no_grad(), GatheredParameters([named[name]], modifier_rank=0):
                            named[name].copy_(value)
                    else:
                        safe_set_full_optimizer_state(named[name], value, kind)
        for flat, (_, head) in self._steps().items():
            self._engine.optimizer.optimizer.state[flat]["step"].fill_(steps["head" if head else "body"])

    def gpu_use(self) -> list[GpuUse]:
        """Returns what this rank took of its GPU since it was asked last."""
        return gpu_use()

    def set_head_only(self, head_only: bool) -> None:
        """Lets only the head move, or everything."""
        self._network.head_only = head_only

    def _moves(self, head: bool) -> bool:
        return head or not self._network.head_only

    def _steps(self) -> dict[torch.Tensor, tuple[int, bool]]:
        """Returns flat partition -> (steps taken, whether it belongs to the head)."""
        zero = self._engine.optimizer
        group_of = getattr(zero, "sub_group_to_group_id", None)
        found = {}
        for place, flat in enumerate(self._flat):
            group = zero.optimizer.param_groups[place if group_of is None else group_of[place]]
            found[flat] = (int(zero.optimizer.state[flat]["step"]), bool(group["head"]))
        return found

    def _named(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name.removeprefix(_PREFIX), p) for name, p in self._parameters.items()]


if __name__ == "__main__":
    serve(Rank)
