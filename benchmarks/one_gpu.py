"""One real GPU: kernels, memory against the plan, speed and agreement of what runs there.

    python -m benchmarks.one_gpu                          # five minutes on an H100 with 16 cores
    python -m benchmarks.one_gpu --quick --device cpu     # that every check works, without a GPU
    python -m benchmarks.one_gpu --only "chain refresh" --results DIR
    python -m benchmarks.one_gpu --merge DIR/one_gpu.json OTHER/one_gpu.json    # later ones win

Everything runs the project's own code on random weights of Qwen3's shapes. Each check is a process of its own
with a limit on its time: one that fails says why, and the others go on. Every row is written at once. Peaks
are torch's own count, DeepSpeed's are what the device says it has given away; neither has the context of the
process that measures.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._results import Criteria, Row, Table, judge, measured, read_rows, write_results
from benchmarks._run import RESULTS, ROOT, Asked, Benchmark, main

if TYPE_CHECKING:
    from benchmarks._gpu import Where

MARK = "ROW "
"""What a check's process begins the line of a row with."""


@dataclass(frozen=True)
class Check:
    """A function of `module`, and how many seconds it may take."""

    module: str
    seconds: int


CHECKS = {
    "attention": Check("_gpu_models", 60),
    "critic": Check("_gpu_models", 60),
    "agreement": Check("_gpu_models", 60),
    "full": Check("_gpu_models", 90),
    "adapters": Check("_gpu_models", 180),
    "hand_off": Check("_gpu_runs", 60),
    "chain": Check("_gpu_runs", 180),
    "deepspeed": Check("_gpu_runs", 60),
    "zero3": Check("_gpu_runs", 90),
    "zero2": Check("_gpu_runs", 110),
    "files": Check("_gpu_runs", 60),
    "refresh": Check("_gpu_runs", 150),  # on what `chain` has left
}
"""In order of worth: when the time is up, the others are left out."""
MORE_CHECKS = {
    "fused": Check("_gpu_speed", 90),
    "turns": Check("_gpu_speed", 75),
    "one_rank": Check("_gpu_speed", 120),
    "plain": Check("_gpu_speed", 60),
}
"""Those of `benchmarks.gpu_speed`."""


def under(most: float, variant: str, metric: str) -> Callable[[Table], bool]:
    """Returns the criterion that a figure is at most this."""
    return lambda t: t(variant, metric) <= most


def takes(kernel: str, dtype: str) -> Callable[[Table], bool]:
    """Returns the criterion that attention takes a kernel, whatever the rows."""

    def met(t: Table) -> bool:
        found = [t(variant, kernel) for variant in t.variants(kernel) if dtype in variant]
        return len(found) > 0 and all(found)

    return met


PLANNED = (
    *("critic", "trainer, 1.7B", "trainer, 8B adapters"),
    *("deepspeed, 1.7B ZeRO 2", "deepspeed, 1.7B ZeRO 3"),
)


def as_planned(variant: str) -> Callable[[Table], bool]:
    """Returns the criterion that a peak is within 5 % of its plan."""
    return lambda t: abs(t(variant, "planned / measured") - 1) <= 0.05


CRITERIA: Criteria = {
    **{f"{name} is complete": lambda t, name=name: t(f"check, {name}", "done") == 1 for name in CHECKS},  # type: ignore[misc]
    "attention in fp32: the memory-efficient kernel": takes("memory-efficient kernel", "fp32"),
    "attention in bf16: the flash kernel": takes("flash kernel", "bf16"),
    "attention: no whole matrices": lambda t: all(
        t(f"attention, {dtype}, 1 x 16,384", "peak / whole matrices") < 0.25 for dtype in ("fp32", "bf16")
    ),
    "attention in fp32: error at most 1e-4": under(1e-4, "attention, fp32", "largest error"),
    "attention in bf16: error at most 1e-2": under(1e-2, "attention, bf16", "largest error"),
    "critic: as on a CPU": under(1e-3, "critic", "largest difference from CPU"),
    "trainer: as on a CPU": under(1e-2, "trainer, tiny", "difference of three updates"),
    **{f"{variant}: within 5 % of the plan": as_planned(variant) for variant in PLANNED},
    "hand-off in fp32: the probe passes": under(1, "hand-off, float32", "gap / limit of the probe"),
    "hand-off in bf16: the probe passes": under(1, "hand-off, bfloat16", "gap / limit of the probe"),
    "deepspeed: as torch's trainer": under(1e-2, "deepspeed, tiny", "difference of three updates"),
    **{
        f"{variant}: leaves at most 1 GiB": under(1, variant, "left GiB after close")
        for variant in ("critic", "trainer, 1.7B", "trainer, 8B adapters", "deepspeed, 1.7B ZeRO 2")
    },
}


def measure(asked: Asked) -> list[Row]:
    """Returns the rows of every check, or of those that `--only` names; writes each at once."""
    began, rows = time.monotonic(), list[Row]()
    for name in asked.options.only.split() or CHECKS:
        left = asked.options.seconds - (time.monotonic() - began)
        if left < 20:
            print(f"--- {name}: left out, the time is up", flush=True)
            continue
        print(f"--- {name}, {left:.0f} s left", flush=True)
        most = left if asked.is_quick else min(left, (CHECKS | MORE_CHECKS)[name].seconds)
        for row in in_a_process(name, asked, most):
            rows.append(row)
            asked.keep(rows)
    return rows


def in_a_process(name: str, asked: Asked, limit: float) -> Iterator[Row]:
    """Yields the rows of a check as it says them, then whether it ended well; shows what else it says."""
    command = [sys.executable, "-m", "benchmarks.one_gpu", "--one", name, asked.options.device]
    started = time.monotonic()
    process = subprocess.Popen(
        [*command, *(["quick"] if asked.is_quick else [])],
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,  # a session of its own would outlive whoever ends this one
    )

    def kill() -> None:
        print(f"{name}: over its limit of {limit:.0f} s", flush=True)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(limit, kill)
    timer.start()
    assert process.stdout is not None
    with process.stdout as said:
        for line in said:
            if line.startswith(MARK):
                row = Row(**json.loads(line.removeprefix(MARK)))
                print(f"    {row.variant:<36} {row.metric:<44} {row.value}", flush=True)
                yield row
            else:
                print(f"    {line.rstrip()}", flush=True)
    code = process.wait()
    timer.cancel()
    seconds = time.monotonic() - started
    print(f"{name}: {'done' if code == 0 else f'FAILED, exit code {code}'}, {seconds:.1f} s", flush=True)
    yield from measured(f"check, {name}", {"done": code == 0, "seconds": seconds})


def one(name: str, where: "Where") -> None:
    """Prints the rows of a check, in a process of its own."""
    check = getattr(import_module(f"benchmarks.{(CHECKS | MORE_CHECKS)[name].module}"), name)
    for row in check(where):
        print(MARK + json.dumps(asdict(row)), flush=True)


def merge(paths: Sequence[Path]) -> None:
    """Writes what several calls measured as one result: the head is the last call's, with all commands."""
    found = [json.loads(path.read_text("utf-8")) for path in paths]
    rows = list({(row.variant, row.metric): row for path in paths for row in read_rows(path)}.values())
    commands = dict.fromkeys(one["command"] for one in found)
    head = {"command": "; ".join(commands), "commit": found[-1]["commit"], "machine": found[-1]["machine"]}
    write_results(RESULTS / "one_gpu.json", head | {"criteria": judge(rows, CRITERIA)}, rows, seed=0)


BENCHMARK = Benchmark(
    "one_gpu",
    __doc__,
    measure,
    CRITERIA,
    quick=("quick",),
    options={"device": "cuda", "only": "", "seconds": 540},
)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        from benchmarks._gpu import Where

        one(sys.argv[2], Where(sys.argv[3], "quick" in sys.argv[4:]))
    elif sys.argv[1:2] == ["--merge"]:
        merge([Path(name) for name in sys.argv[2:]])
    else:
        sys.exit(main(BENCHMARK))
