"""Training with DeepSpeed: ranks in processes of their own, started and fed by the stage.

This side knows no DeepSpeed: it deals an update's rows to the ranks (`deepspeed_rank.py`) and adds up what
they report. Every rank gets the same number of micro-batches, as collectives need.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils.logging import disable_progress_bar

from pipeline.artifacts.checkpoints import FileFacts
from pipeline.hardware import GpuUse
from pipeline.models.folder import FILE_SIZE
from pipeline.processes.shared_weights import Files, Layout, SharedWeights, read_shared
from pipeline.training.deepspeed_config import is_half
from pipeline.training.packing import Loss, dealt
from pipeline.training.protocol import TrainingRow, diverged, read_state, write_state
from pipeline.training.rank_group import DeepSpeedOptions, RankGroup, RankSetup


class DeepSpeedTrainer:
    """A `Trainer` with its model in the ranks, split as ZeRO says."""

    def __init__(
        self,
        model: Any,
        *,
        head: str,
        options: DeepSpeedOptions,
        learning_rate: Callable[[int], float] | None = None,
        weight_decay: float = 0.0,
        grad_clip: float = 1.0,
        micro_batch_tokens: int = 16384,
        lora_rank: int = 0,
        lora_alpha: int = 32,
        files: Files | None = None,
        **network: Any,
    ) -> None:
        """Starts the ranks with a model's weights; see `TorchTrainer` for the arguments it shares.

        The model's weights live in the ranks from now on; here it keeps names and shapes only. With `files`
        nobody looks at its numbers: ranks map the files that hold them.
        """
        self.model = model
        self.learning_rate = learning_rate
        self.num_updates = 0
        self._micro_batch_tokens = micro_batch_tokens
        self._shared = SharedWeights()
        self._offloaded = False
        self._head_only = False
        self._steps = {"head": 0, "body": 0}
        # A frozen critic's scores are calibrated, and serve as `FrozenCritic` computes them: in fp32.
        frozen_critic = head == "critic" and learning_rate is None
        dtype = torch.bfloat16 if is_half(options.config) and not frozen_critic else torch.float32
        named = None if files is None else {name: files[name] for name, _ in model.named_parameters()}
        setup = RankSetup(
            model_class=type(model).__name__,
            model_config=model.config.to_dict(),
            weights=named if named is not None else self._shared.write(dict(model.named_parameters()), dtype),
            dtype=dtype,
            head=head,
            network=network,
            weight_decay=weight_decay,
            grad_clip=grad_clip,
            trains=learning_rate is not None,
            options=options,
            lora_rank=lora_rank,
            lora_alpha=lora_alpha,
        )
        self._adapted = lora_rank > 0
        self._shapes = {name: (torch.float32, tuple(p.shape)) for name, p in model.named_parameters()}
        owner = {id(p): name for name, p in model.named_parameters()}  # a tied one has two names
        self._name_of = {key: owner[id(p)] for key, p in model.state_dict(keep_vars=True).items()}
        with torch.no_grad():
            for parameter in model.parameters():  # one number, whatever the shape
                parameter.data = parameter.new_zeros(()).expand(parameter.shape)
        self._ranks = RankGroup(setup)
        if setup.trains:
            self._shared.close()  # ranks that only score read it again after `offload`

    def set_head_only(self, head_only: bool) -> None:
        """Trains a critic's head alone, or everything; see `Trainer`."""
        self._head_only = head_only
        self._returned().tell("set_head_only", head_only)

    def update(self, rows: Sequence[TrainingRow], loss: Loss) -> dict[str, float]:
        """Takes one optimizer step on the sum of `loss` over rows; see `Trainer`."""
        if not rows or self.learning_rate is None:
            raise ValueError(f"an update needs rows (got {len(rows)}) and a trainer with a learning rate")
        rate = self.learning_rate(self.num_updates)
        shares = _equally_many(rows, self._dealt(rows))
        answers = self._returned().tell_each("update", [(loss, rate, share) for share in shares])
        first = answers[0]
        sums: dict[str, float] = {name: sum(a["sums"][name] for a in answers) for name in first["sums"]}
        if not first["stepped"]:
            raise diverged(self.num_updates, sums["loss"], first["grad_norm"])
        self.num_updates += 1
        self._steps["head"] += 1
        self._steps["body"] += not self._head_only
        return sums | {"grad_norm": first["grad_norm"], "learning_rate": rate}

    def forward(self, rows: Sequence[TrainingRow], adapted: bool = True) -> list[dict[str, np.ndarray]]:
        """Returns each row's outputs without gradient, unpadded, in the order given; see `Trainer`."""
        if not rows:
            return []
        results: list[dict[str, np.ndarray]] = [{} for _ in rows]
        places = self._dealt(rows)
        shares = [(share, adapted) for share in _equally_many(rows, places)]
        answers = self._returned().tell_each("forward", shares)
        for batches, answer in zip(places, answers, strict=True):
            for i, output in zip(chain(*batches), answer, strict=False):  # what follows is idle work
                results[i] = output
        return results

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Returns the fp32 weights by Hugging Face name, in memory that lives as long as one of them."""
        ranks, shared = self._returned(), SharedWeights()
        layout = shared.reserve(self._shapes)
        try:
            self._write_weights(ranks, layout)
            found = dict(read_shared(layout))
            return {key: found[name] for key, name in self._name_of.items()}
        finally:
            shared.close()

    def _write_weights(self, ranks: RankGroup, layout: Layout) -> None:
        """Has each rank write what it owns, side by side; of an adapted weight it needs whole adapters."""
        if not self._adapted:
            ranks.tell("write_weights", layout)
            return
        shared = SharedWeights()
        try:
            adapters = shared.reserve(ranks.tell("trained_shapes")[0])
            ranks.tell("write_weights", adapters)
            ranks.tell("write_merged", adapters, layout)
        finally:
            shared.close()

    def save_checkpoint(self, folder: Path) -> FileFacts:
        """Writes each rank's parts of weights and moments in safetensors, then state.json."""
        folder.mkdir(parents=True, exist_ok=True)
        files = self._returned().tell("save", folder)
        state = {"num_updates": self.num_updates, "steps": self._steps, "head_only": self._head_only}
        write_state(folder, state)
        return {name: facts for of_rank in files for name, facts in of_rank.items()}

    def load_checkpoint(self, folder: Path) -> None:
        """Restores what `save_checkpoint` wrote, on whatever number of ranks; see `Trainer`."""
        state = read_state(folder)
        self._returned().tell("load", folder, state["steps"])
        self._steps = dict(state["steps"])
        self.num_updates = int(state["num_updates"])
        self.set_head_only(state["head_only"])

    def export(self, folder: Path) -> None:
        """Writes the model in Hugging Face format (config, safetensors)."""
        disable_progress_bar()
        self.model.save_pretrained(folder, state_dict=dict(self.weights()), max_shard_size=FILE_SIZE)

    def offload(self) -> None:
        """Moves every rank's part to host memory until the next call that needs it; see `Trainer`."""
        if not self._offloaded:
            self._ranks.tell("offload")
            self._offloaded = True

    def gpu_use(self) -> list[GpuUse]:
        """Returns what each rank took of its GPU; see `Trainer`."""
        return list(chain(*self._ranks.tell("gpu_use")))  # wherever its part lies

    def close(self) -> None:
        """Ends the ranks; idempotent."""
        self._ranks.close()
        self._shared.close()

    def _returned(self) -> RankGroup:
        """Moves the ranks' parts back to their GPUs if they are offloaded; returns the ranks."""
        if self._offloaded:
            self._offloaded = False
            self._ranks.tell("reload")
        return self._ranks

    def _dealt(self, rows: Sequence[TrainingRow]) -> list[list[list[int]]]:
        """Returns, for each rank, its micro-batches as places of rows."""
        return dealt([len(row.token_ids) for row in rows], self._micro_batch_tokens, len(self._ranks.ranks))


def _equally_many(
    rows: Sequence[TrainingRow], places: list[list[list[int]]]
) -> list[list[list[TrainingRow]]]:
    """Returns the ranks' micro-batches, equally many each: the missing ones repeat a row at weight 0."""
    shortest = min(rows, key=lambda row: len(row.token_ids))
    zero = {name: np.zeros_like(column) for name, column in shortest.columns.items() if "weight" in name}
    idle = replace(shortest, columns=shortest.columns | zero)
    most = max(map(len, places))
    return [
        [[rows[i] for i in batch] for batch in share] + [[idle]] * (most - len(share)) for share in places
    ]
