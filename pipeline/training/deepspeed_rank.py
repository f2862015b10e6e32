"""One rank of a DeepSpeed trainer in a process of its own: the only file that imports deepspeed."""

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import timedelta
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.initialization import no_init_weights

from pipeline.hardware import GpuUse, gpu_use
from pipeline.processes.life import sign_of_life
from pipeline.processes.shared_weights import Layout, Targets, Written, read_files, read_shared
from pipeline.training.lora import BASE, add_adapters, base_name, merged_run, without_adapters
from pipeline.training.network import Network, adamw_groups
from pipeline.training.packing import Batch, Loss, packed, summed
from pipeline.training.protocol import TrainingRow
from pipeline.training.rank_group import RankSetup, serve
from pipeline.training.zero_moves import ZeroMoves
from pipeline.training.zero_parts import (
    KINDS,
    MOMENTS,
    WEIGHT,
    Part,
    load_parts,
    own_parts,
    refresh_weights,
    save_parts,
)

EXCHANGE = timedelta(hours=12)  # whether ranks hang is for the group to say, which sees them all
_PREFIX = "model."  # of the wrapped model's parameters in `Network`


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
            self._device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(self._device)
        if setup.trains:
            import deepspeed

            # Else it compiles what only its inference needs, under a lock that a killed rank leaves behind.
            deepspeed.ops.__compatible_ops__ = {}
            deepspeed.init_distributed(
                verbose=False,
                auto_mpi_discovery=False,
                timeout=EXCHANGE,
                init_method=meeting if "://" in meeting else f"file://{meeting}",
                rank=self._rank,
                world_size=self._world,
            )
        model_class = getattr(transformers, setup.model_class)
        shape = model_class.config_class.from_dict(setup.model_config)
        with no_init_weights():  # memory that nobody writes to is not taken
            model = model_class(shape).to(torch.float32)
        model.tie_weights()
        if setup.lora_rank:
            add_adapters(model, setup.lora_rank, setup.lora_alpha)
        zero = setup.options.config.get("zero_optimization", {})
        config = {
            **setup.options.config,
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "managed_gradient_accumulation": False,
            "gradient_clipping": setup.grad_clip,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,  # torch's own fused AdamW, which needs no compiler
            "steps_per_print": 2**31,
        }
        divides = setup.trains and zero.get("stage") == 3
        # Else every rank would hold all weights before DeepSpeed divides them.
        divide = deepspeed.zero.Init(torch.nn.Module(), config_dict_or_path=config) if divides else None
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        groups = adamw_groups(trained, setup.weight_decay)  # of shapes that divided weights no longer have
        self._fill(model, divide)
        network = {"compiles": zero.get("stage") != 3} | setup.network  # a reference as its trainer
        self._network = Network(model, head=setup.head, **network)  # type: ignore[arg-type]
        parameters = {n.removeprefix(_PREFIX): p for n, p in self._network.named_parameters()}
        self._trained = {name: p for name, p in parameters.items() if p.requires_grad}
        self._frozen = {name: p for name, p in parameters.items() if not p.requires_grad}
        if not setup.trains:  # every rank scores its share with a whole copy, and talks to no other
            self._engine: Any = self._network.to(self._device)
            return
        on_host = zero.get("offload_optimizer", {}).get("device", "none") != "none"
        optimizer = torch.optim.AdamW(
            groups,
            lr=0.0,
            fused=True if on_host else None,  # one pass over host memory instead of a dozen
        )
        self._engine, *_ = deepspeed.initialize(model=self._network, optimizer=optimizer, config=config)
        self._make_moments()
        self._away = ZeroMoves(self._engine, self._flat, self._frozen, on_host)

    def _fill(self, model: torch.nn.Module, divide: Any = None) -> None:
        """Gives each weight its numbers, one after another; `divide` leaves this rank its part of it."""
        weights = {base_name(name): p for name, p in model.named_parameters()}
        source, dtype = self._setup.weights, self._setup.dtype
        stored = read_shared(source) if isinstance(source, Layout) else read_files(source)
        for name, tensor in stored:
            sign_of_life("a weight of the model")
            parameter = weights.pop(name)
            parameter.data = tensor.to(dtype).to(self._device, copy=True)
            if divide is not None:
                divide._convert_to_zero_parameters([parameter])
        for parameter in weights.values():  # adapters, drawn alike by all ranks
            parameter.data = parameter.data.to(self._device, dtype)
            if divide is not None:
                divide._convert_to_zero_parameters([parameter])

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
        if self._setup.trains:
            self._away.leave()
        else:
            for parameter in self._network.parameters():
                parameter.data = parameter.new_empty(0)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def reload(self) -> None:
        """Undoes `offload`."""
        if self._setup.trains:
            self._away.come_back(self._device)
            self._link_moments()
        else:
            self._fill(self._network.model)

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

    def forward(
        self, share: Sequence[Sequence[TrainingRow]], adapted: bool = True
    ) -> list[dict[str, np.ndarray]]:
        """Returns the outputs of each row, one micro-batch after another."""
        with self._network.scoring(), nullcontext() if adapted else without_adapters(self._network):
            return [row for b in self._batches(share) for _, row in b.unpacked(self._engine(b))]

    def _batches(self, share: Sequence[Sequence[TrainingRow]]) -> Iterator[Batch]:
        for rows in share:
            yield packed(rows, range(len(rows))).to(self._device)
            sign_of_life("a micro-batch")

    def write_weights(self, layout: Layout) -> Written:
        """Copies this rank's parts of the fp32 weights to their places in shared memory."""
        targets = Targets(layout)
        for name, part in self._parts(WEIGHT).items():
            sign_of_life("a weight handed over")
            targets.write(name, part.start, part.values)
        return targets.written

    def trained_shapes(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Returns dtype and shape of what `write_weights` writes, by name."""
        shapes = {name: tuple(getattr(p, "ds_shape", p.shape)) for name, p in self._trained.items()}
        return {name: (torch.float32, shape) for name, shape in shapes.items()}

    def write_merged(self, adapters: Layout, layout: Layout) -> Written:
        """Copies this rank's runs of the fp32 weights, their adapters added, to their places."""
        trained, targets = dict(read_shared(adapters)), Targets(layout)
        scale = self._setup.lora_alpha / self._setup.lora_rank
        for name, parameter in self._frozen.items():
            sign_of_life("a weight merged")
            base, layer = base_name(name), name.rpartition(BASE)[0]
            start, run = self._frozen_run(parameter)
            if layer:
                both = (trained[f"{layer}.{part}.default.weight"] for part in ("lora_A", "lora_B"))
                down, up = (part.to(run.device) for part in both)
                run = merged_run(run, start, targets.shape(base)[1], down, up, scale)
            targets.write(base, start, run)
        for name in targets.names & trained.keys() if self._rank == 0 else ():  # a critic's head
            targets.write(name, 0, trained[name])
        return targets.written

    def _frozen_run(self, parameter: Any) -> tuple[int, torch.Tensor]:
        """Returns the run of a weight's elements that this rank answers for, and where it starts."""
        part = getattr(parameter, "ds_tensor", None)
        number = parameter.numel() if part is None else parameter.ds_numel
        size = -(-number // self._world) if part is None else part.numel()
        start = min(number, self._rank * size)
        stop = min(number, start + size)
        return start, parameter.detach().view(-1)[start:stop] if part is None else part[: stop - start]

    def save(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Writes this rank's parts of weights and moments; returns its files with size and SHA-256."""
        return save_parts(folder, self._all_parts(), f"part-{self._rank:05d}-of-{self._world:05d}")

    def load(self, folder: Path, steps: dict[str, int]) -> None:
        """Takes this rank's parts of what any number of ranks have saved, and the steps taken."""
        shapes = self.trained_shapes().items()
        sizes = {f"{kind}.{name}": prod(shape) for kind in KINDS for name, (_, shape) in shapes}
        load_parts(folder, self._all_parts(), sizes)
        refresh_weights(self._engine.optimizer)
        for flat, (_, head) in self._steps().items():
            self._engine.optimizer.optimizer.state[flat]["step"].fill_(steps["head" if head else "body"])

    def _all_parts(self) -> dict[str, Part]:
        return {f"{kind}.{name}": part for kind in KINDS for name, part in self._parts(kind).items()}

    def _parts(self, kind: str) -> dict[str, Part]:
        return own_parts(self._engine.optimizer, self._trained, self._rank, kind)

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


if __name__ == "__main__":
    serve(Rank)
