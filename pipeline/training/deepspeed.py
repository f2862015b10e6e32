"""Training with DeepSpeed: ranks in processes of their own, started and fed by the stage.

This side knows no DeepSpeed: it deals an update's rows to the ranks (`deepspeed_rank.py`) and adds up what
they report. Every rank gets the same number of micro-batches, as collectives need.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pipeline.errors import ArtifactError, DivergenceError
from pipeline.processes.shared_weights import SharedWeights, read_shared
from pipeline.processes.worker import Worker
from pipeline.training import TrainingRow
from pipeline.training.rows import bins_of

if TYPE_CHECKING:
    import torch

    from pipeline.processes.shared_weights import Layout
    from pipeline.training import Loss

STATE = "state.json"
HEAD = "score."
"""First letters of the names of a critic's head, which may be trained alone."""


@dataclass(frozen=True, slots=True)
class DeepSpeedOptions:
    """How DeepSpeed runs; nothing here changes what is computed but for rounding.

    Attributes:
        num_ranks: processes, one GPU each.
        config: DeepSpeed's own configuration, without what the trainer decides (optimizer, clipping, batch
            sizes, accumulation).
        threads: CPU threads of each rank; 0 is an even share of the cores.
        timeout: seconds an update, and each exchange between ranks in it, may take until they count as hung.
    """

    num_ranks: int = 1
    config: Mapping[str, Any] = field(default_factory=lambda: {"zero_optimization": {"stage": 2}})
    threads: int = 0
    timeout: float = 3600.0

    @property
    def weight_dtype(self) -> torch.dtype:
        """Of the weights that a forward pass reads; master copy and moments are fp32."""
        import torch

        return torch.bfloat16 if self.config.get("bf16", {}).get("enabled") else torch.float32


@dataclass(frozen=True, slots=True)
class RankSetup:
    """What a rank needs to build its part of the trainer.

    Attributes:
        model_class: class of the model in transformers.
        model_config: its configuration as a dictionary.
        weights: where the ranks read them; in bf16 if that is what they compute in.
        head: of `Network`.
        network: further options of `Network`.
        weight_decay: AdamW's.
        betas: AdamW's.
        grad_clip: bound on the gradient's norm.
        trains: whether there is an optimizer at all.
        options: how DeepSpeed runs.
        meeting: an empty file in which the ranks find each other.
    """

    model_class: str
    model_config: dict[str, Any]
    weights: Layout
    head: str
    network: dict[str, Any]
    weight_decay: float
    betas: tuple[float, float]
    grad_clip: float
    trains: bool
    options: DeepSpeedOptions
    meeting: str


class DeepSpeedTrainer:
    """A `Trainer` whose model lives in the ranks, split as ZeRO says.

    Attributes:
        num_updates: optimizer steps taken.
        learning_rate: number of updates taken -> rate of the next; may be replaced between phases.
    """

    def __init__(
        self,
        model: Any,
        *,
        head: str,
        learning_rate: Callable[[int], float] | None = None,
        weight_decay: float = 0.0,
        grad_clip: float = 1.0,
        micro_batch_tokens: int = 16384,
        betas: tuple[float, float] = (0.9, 0.999),
        options: DeepSpeedOptions | None = None,
        **network: Any,
    ) -> None:
        """Starts the ranks with a model's weights; see `TorchTrainer` for the arguments it shares.

        Takes over the model: its weights live in the ranks from now on, here it keeps names and shapes only.
        """
        import torch

        options = options or DeepSpeedOptions()
        self.model = model
        self.learning_rate = learning_rate
        self.num_updates = 0
        self._options = options
        self._micro_batch_tokens = micro_batch_tokens
        self._shared = SharedWeights()
        self._offloaded = False
        self._trainable: tuple[str, ...] | None = None
        self._steps = {"head": 0, "body": 0}
        # Ranks meet in a file of this trainer's own, where torch would want a port that others may take.
        self._meeting = os.memfd_create("vdapo-ranks")
        # A frozen critic's scores are calibrated, and serve as `FrozenCritic` computes them: in fp32.
        weight_dtype = torch.float32 if head == "critic" and learning_rate is None else options.weight_dtype
        setup = RankSetup(
            model_class=type(model).__name__,
            model_config=model.config.to_dict(),
            weights=self._shared.write(dict(model.named_parameters()), weight_dtype),
            head=head,
            network=network,
            weight_decay=weight_decay,
            betas=betas,
            grad_clip=grad_clip,
            trains=learning_rate is not None,
            options=options,
            meeting=f"/proc/{os.getpid()}/fd/{self._meeting}",
        )
        with building_extensions() if setup.trains else nullcontext():
            self._ranks = [self._start(rank) for rank in range(options.num_ranks)]
            try:
                for rank in self._ranks:
                    rank.send(setup)
                with torch.no_grad():
                    for parameter in model.parameters():  # one number, whatever the shape
                        parameter.data = parameter.new_zeros(()).expand(parameter.shape)
                self._answers()
            except BaseException:
                self.close()  # before another group starts: one of them may be compiling
                raise
        if setup.trains:
            self._shared.close()  # ranks that only score read it again after `offload`

    def set_trainable(self, prefixes: Sequence[str] | None) -> None:
        """Trains only weights whose names start with one of the prefixes (None: all); keeps their moments."""
        if prefixes is not None and not all(prefix.startswith(HEAD.rstrip(".")) for prefix in prefixes):
            raise ValueError(
                f"trainable weights {list(prefixes)}; with DeepSpeed it is the head or everything"
            )
        self._trainable = None if prefixes is None else tuple(prefixes)
        self._tell("set_head_only", self._trainable is not None)

    def update(self, rows: Sequence[TrainingRow], loss: Loss) -> dict[str, float]:
        """Takes one optimizer step on the sum of `loss` over rows; see `Trainer`.

        Raises:
            ValueError: there are no rows.
            DivergenceError: loss or gradient is not finite; the weights have not changed.
        """
        if not rows or self.learning_rate is None:
            raise ValueError(f"an update needs rows (got {len(rows)}) and a trainer with a learning rate")
        rate = self.learning_rate(self.num_updates)
        shares = self._deal(rows)
        answers = self._tell("update", *[[(loss, rate, share)] for share in shares], each=True)
        sums: dict[str, float] = {}
        for metrics in answers:
            for name, number in metrics["sums"].items():
                sums[name] = sums.get(name, 0.0) + number
        norm = answers[0]["grad_norm"]
        if not answers[0]["stepped"]:
            raise DivergenceError(
                f"training diverged at update {self.num_updates}: loss {sums['loss']}, gradient norm {norm}; "
                "both must be finite. The weights are those before it. Next: a lower learning_rate or more "
                "warm-up, then the stage again with --fresh (the same command alone would end here again)"
            )
        self.num_updates += 1
        self._steps["head"] += 1
        self._steps["body"] += self._trainable is None
        return sums | {"grad_norm": norm, "learning_rate": rate}

    def forward(self, rows: Sequence[TrainingRow]) -> list[dict[str, np.ndarray]]:
        """Returns each row's outputs without gradient, unpadded, in the order given."""
        if not rows:
            return []
        results: list[dict[str, np.ndarray]] = [{} for _ in rows]
        answers = self._tell("forward", *[[share] for share in self._deal(rows)], each=True)
        for places, answer in zip(self._deal_places(rows), answers, strict=True):
            for batch, outputs in zip(places, answer, strict=False):  # what follows is idle work
                for i, output in zip(batch, outputs, strict=True):
                    results[i] = output
        return results

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Returns the model's weights by Hugging Face name; views that the next call overwrites."""
        layout = self._tell("gather_weights")[0]
        return dict(read_shared(layout))

    def save_checkpoint(self, folder: Path) -> None:
        """Writes each rank's share of weights and moments, whole tensors in safetensors, then state.json."""
        folder.mkdir(parents=True, exist_ok=True)
        digests: dict[str, str] = {}
        for answer in self._tell("save", str(folder)):
            digests |= answer
        state = {
            "num_updates": self.num_updates,
            "steps": self._steps,
            "trainable": self._trainable,
            "sha256": digests,
        }
        (folder / STATE).write_text(json.dumps(state, indent=1, sort_keys=True) + "\n")

    def load_checkpoint(self, folder: Path) -> None:
        """Restores what `save_checkpoint` wrote, on whatever number of ranks.

        Raises:
            ArtifactError: a file is missing, its digest differs, or it belongs to another model.
        """
        from pipeline.ids import file_sha256

        try:
            state = json.loads((folder / STATE).read_text())
            for name, expected in state["sha256"].items():
                if (got := file_sha256(folder / name)) != expected:
                    raise ArtifactError(
                        f"{folder / name}: SHA-256 is {got[:12]}, state.json says {expected[:12]}"
                    )
        except (OSError, ValueError, KeyError) as error:
            raise ArtifactError(f"{folder} is not a whole checkpoint: {error!r}") from error
        self._tell("load", (str(folder), sorted(state["sha256"]), state["steps"]))
        self._steps = dict(state["steps"])
        self.num_updates = int(state["num_updates"])
        self.set_trainable(state["trainable"])

    def export(self, folder: Path) -> None:
        """Writes the model in Hugging Face format (config, safetensors)."""
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        self.model.save_pretrained(folder, state_dict=dict(self.weights()))

    def offload(self) -> None:
        """Moves every rank's part to host memory until the next call that needs it; see `Trainer`."""
        if not self._offloaded:
            self._tell("offload")
            self._offloaded = True

    def close(self) -> None:
        """Ends the ranks; idempotent."""
        for rank in self._ranks:
            rank.close()
        self._shared.close()
        if self._meeting >= 0:
            os.close(self._meeting)
            self._meeting = -1

    def _start(self, rank: int) -> Worker:
        import torch

        env = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self._options.num_ranks),
            "OMP_NUM_THREADS": str(threads_of_a_rank(self._options)),
        }
        if not torch.cuda.is_available():
            env["DS_ACCELERATOR"] = "cpu"
        if folder := extensions_folder():
            env["TORCH_EXTENSIONS_DIR"] = str(folder)
        return Worker("pipeline.training.deepspeed_rank", f"DeepSpeed rank {rank}", env=env)

    def _tell(self, method: str, *arguments: Any, each: bool = False) -> list[Any]:
        """Calls a method of every rank, with the same arguments or `each` its own; returns their answers."""
        if self._offloaded:
            self._offloaded = False
            self._tell("reload")
        for index, rank in enumerate(self._ranks):
            rank.send((method, tuple(arguments[index]) if each else arguments))
        return self._answers()

    def _answers(self) -> list[Any]:
        """Returns every rank's answer, in order.

        Raises:
            WorkerDiedError: of the rank that failed first, which makes the others fail; or one was silent.
        """
        answers: dict[int, Any] = {}
        waiting = {rank.connection: place for place, rank in enumerate(self._ranks)}
        deadline = time.monotonic() + self._options.timeout
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                silent = self._ranks[min(waiting.values())]
                raise silent.death(f"did not answer within {self._options.timeout:.0f} s")
            failures = []  # when, which rank
            for connection in cast("list[Connection]", ready):
                place = waiting.pop(connection)
                try:
                    kind, answers[place] = connection.recv()
                except (EOFError, OSError):  # killed, perhaps in mid-sentence: not by what others did
                    kind, answers[place] = "failed", 0.0
                if kind == "failed":
                    failures.append((answers[place], place))
            if failures:
                raise self._ranks[min(failures)[1]].death()
        return [answers[place] for place in range(len(self._ranks))]

    def _deal_places(self, rows: Sequence[TrainingRow]) -> list[list[list[int]]]:
        """Returns, for each rank, its micro-batches as places of rows, dealt heaviest first."""
        lengths = [len(row.token_ids) for row in rows]
        bins = bins_of(lengths, self._micro_batch_tokens)
        cost = [sum(lengths[i] for i in members) for members in bins]
        shares: list[list[list[int]]] = [[] for _ in self._ranks]
        loads = [0] * len(self._ranks)
        for place in sorted(range(len(bins)), key=lambda b: -cost[b]):
            lightest = min(range(len(loads)), key=lambda r: (len(shares[r]), loads[r]))
            shares[lightest].append(bins[place])
            loads[lightest] += cost[place]
        return shares

    def _deal(self, rows: Sequence[TrainingRow]) -> list[list[list[TrainingRow]]]:
        """Returns each rank's micro-batches, equally many: the missing ones repeat a row at weight 0."""
        shares = [[[rows[i] for i in batch] for batch in share] for share in self._deal_places(rows)]
        most = max(map(len, shares))
        idle = _without_weight(min(rows, key=lambda row: len(row.token_ids)))
        return [share + [[idle]] * (most - len(share)) for share in shares]


def threads_of_a_rank(options: DeepSpeedOptions) -> int:
    """Returns CPU threads: as many as asked for, or an even share of the cores this process may use."""
    return options.threads or max(1, len(os.sched_getaffinity(0)) // options.num_ranks)


def extensions_folder() -> Path | None:
    """Returns where ranks build what DeepSpeed compiles: one place an environment; None is torch's choice.

    `TORCH_EXTENSIONS_DIR` says otherwise. It is torch's choice where the environment cannot be written.
    """
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path(sys.prefix) / "torch_extensions")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


@contextmanager
def building_extensions() -> Iterator[None]:
    """Lets one group of ranks at a time start, the only time that they compile.

    torch guards a build by a file, which a rank killed meanwhile leaves behind: every later start would wait
    for it, silently and for ever. The kernel frees our lock with its owner, so whoever holds it knows that
    such a file is stale.
    """
    folder = extensions_folder()
    if folder is None:
        yield
        return
    with (folder / "vdapo.lock").open("w") as lock:  # not inherited by the ranks
        with suppress(OSError):  # no kernel locks on this file system
            fcntl.flock(lock, fcntl.LOCK_EX)
            for stale in folder.glob("*/lock"):
                stale.unlink(missing_ok=True)
        yield


def _without_weight(row: TrainingRow) -> TrainingRow:
    zero = {name: np.zeros_like(column) for name, column in row.columns.items() if "weight" in name}
    return TrainingRow(row.token_ids, row.columns | zero)
