"""How fast a run goes: seconds by part, tokens a second, share of the GPUs' peak, memory.

Nothing of it is the same twice, so it goes to metrics.jsonl and to no table.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.clock import Clock
from pipeline.hardware import GpuUse, host_memory, peak_operations
from pipeline.planner.operations import update_operations
from pipeline.training.protocol import Trainer, TrainingRow

SECONDS = "timing_s/"
"""What the names of seconds begin with."""
OF_TRAINER = {"update": "update", "forward": "logprobs", "weights": "hand_off", "save_checkpoint": "save"}
"""Method of a trainer -> the part that its time belongs to."""


class Timed:
    """A thing whose methods take time that belongs to parts; all else of it is as it was.

    `notes`: method -> what is told of its arguments first.
    """

    def __init__(
        self, thing: Any, parts: Mapping[str, str], clock: Clock, **notes: Callable[..., None]
    ) -> None:
        self.__dict__.update(_thing=thing, _parts=parts, _clock=clock, _notes=notes)

    def __getattr__(self, name: str) -> Any:
        if name not in self._parts:
            return getattr(self._thing, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if name in self._notes:
                self._notes[name](*arguments, **named)
            with self._clock.at(self._parts[name]):  # GPUs change hands when the method is looked up
                return getattr(self._thing, name)(*arguments, **named)

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        thing = self._thing
        # Set on another wrapper, such as `Turns` makes, it would be where the thing itself never looks.
        while "_thing" in getattr(thing, "__dict__", ()):
            thing = thing._thing
        setattr(thing, name, value)


class Pace:
    """Times what works for a stage, and counts what its trainers train on.

    Args:
        num_gpus: of the stage; without any, operations are not counted.
        half_precision: whether trainers compute in bf16, whose peak is known.
        adapters: whether they train adapters alone.
    """

    def __init__(self, num_gpus: int = 0, *, half_precision: bool = False, adapters: bool = False) -> None:
        self.clock = Clock()
        self._counts, self._adapters = num_gpus > 0 and half_precision, adapters
        self._tokens, self._operations = 0, 0.0
        self._gpus: Callable[[], Sequence[GpuUse]] | None = None

    def trainer(self, trainer: Trainer, config: Any, head: str = "policy") -> Trainer:
        """Returns a trainer of a model, whose time and rows count from now on.

        The GPUs are looked at through the first one.
        """

        def note(rows: Sequence[TrainingRow], loss: Any) -> None:
            self._tokens += sum(len(row.token_ids) for row in rows)
            if self._counts:
                self._operations += update_operations(config, rows, adapters=self._adapters, head=head)

        self._gpus = self._gpus or trainer.gpu_use
        timed: Trainer = Timed(trainer, OF_TRAINER, self.clock, update=note)
        return timed

    def timed(self, thing: Any, **parts: str) -> Any:
        """Returns a thing whose methods' time counts for parts; None if there is none."""
        return None if thing is None else Timed(thing, parts, self.clock)

    def lap(self, sampled: int = 0) -> dict[str, float]:
        """Returns the metrics since the last lap, in which so many tokens were sampled.

        A rate is left out where nothing was done, the share of the peak (MFU: what a model's products take,
        none twice, as in arXiv:2204.02311, appendix B, but of attention the causal half alone) where it is
        not known, GPUs where there are none.
        """
        spent = self.clock.lap()
        found = {f"{SECONDS}{part}": seconds for part, seconds in spent.items()}
        for name, tokens, part in (("sampled", sampled, "sampling"), ("trained", self._tokens, "update")):
            if tokens and spent.get(part):
                found[f"perf/{name}_tokens_per_s"] = tokens / spent[part]
        gpus = self._gpus() if self._gpus is not None else ()
        found |= {f"perf/gpu{place}_peak_gib": gpu.peak_gib for place, gpu in enumerate(gpus)}
        if gpus and self._counts and spent.get("update") and (most := peak_operations(gpus[0].name)):
            found["perf/mfu"] = self._operations / spent["update"] / (most * len(gpus))
        found["perf/host_gib"], found["perf/host_peak_gib"] = host_memory()
        self._tokens, self._operations = 0, 0.0
        return found
