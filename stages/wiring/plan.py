"""Says whether a configuration fits its hardware, and what it would cost at least: `vdapo plan CONFIG`.

Takes no GPU, no memory and no data: the model exists as shapes only.
"""

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline.config import load_config
from pipeline.errors import ExitCode
from pipeline.planner.memory import GIB, Shape, shape_of
from stages.settings import Config
from stages.wiring.plan_advice import advice, can_share, changed, no_room_for_a_row, unused_gpus
from stages.wiring.plan_memory import Memory, memory_of
from stages.wiring.plan_models import critic_config, model_config
from stages.wiring.plan_work import least_hours, stored_gb, work_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("config", type=Path, help="a YAML, such as configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value")


def run(options: argparse.Namespace) -> int:
    """Prints the plan of a configuration; returns 0 if it fits, else 2."""
    config = load_config(Config, options.config, options.overrides)
    policy = model_config(config)
    critic, positions = critic_config(config, policy), int(policy.max_position_embeddings)
    context = min(config.sampling.max_response_tokens + config.prompt.max_feedback_tokens, positions)
    shapes = {"policy": shape_of(policy), "critic": shape_of(critic)}
    taken_by = partial(memory_of, policy, critic, context)
    memory = taken_by(config)
    console = Console()
    for name, shape in shapes.items():
        console.print(
            f"{name}: {shape.parameters:,} parameters, {shape.layers} layers of width {shape.width}; keys "
            f"and values of a token {shape.cache_bytes(2):,} bytes in bf16"
        )
    console.print(
        f"rows of {context:,} tokens at most, besides a task's own prompt; {memory.live} of them alive in a "
        "replica"
    )
    console.print(_memory_table(memory))
    if can_share(config):
        console.print(_other_way(config, taken_by))
    console.print(_cost_table(config, shapes, memory.live, context))
    misfits = unused_gpus(config) + no_room_for_a_row(config, memory, shapes["policy"], positions)
    for name in memory.phases:
        if not memory.fits(name):
            misfits.append(f"{name}: {advice(config, taken_by, context, name)}")
    for line in misfits:
        console.print(f"does not fit: {line}", style="bold")
    return ExitCode.CONFIG if misfits else ExitCode.COMPLETE


def _memory_table(memory: Memory) -> Table:
    limit = f"of {memory.limit / GIB:.1f}"
    table = Table("phase", "GiB", limit, "parts", title="memory of each GPU or process")
    for name, phase in memory.phases.items():
        parts = ", ".join(f"{part} {size / GIB:.2f}" for part, size in phase.device.items())
        if phase.host:
            held = ", ".join(f"{part} {size / GIB:.0f}" for part, size in phase.host.items())
            parts += f"; in host memory {phase.host_bytes / GIB:.0f}: {held}"
        fits = "fits" if memory.fits(name) else "DOES NOT FIT"
        table.add_row(name, f"{phase.device_bytes / GIB:.2f}", fits, parts)
    return table


def _other_way(config: Config, taken_by: Callable[[Config], Memory]) -> str:
    """Returns what generation and update would take if the engine shared its GPUs, or no longer did."""
    shared = not config.engine.shared_gpus
    memory = taken_by(changed(config, {"engine.shared_gpus": shared}))
    said = ", ".join(
        f"{name} {memory.phases[name].device_bytes / GIB:.2f} GiB"
        + ("" if memory.fits(name) else " (does not fit)")
        for name in ("generation", "actor update")
    )
    return f"with engine.shared_gpus={str(shared).lower()}: {said}"


def _cost_table(config: Config, shapes: Mapping[str, Shape], live: int, context: int) -> Table:
    work = work_of(config)
    columns: dict[str, list[float | None]] = {
        "rollouts": [w.rollouts for w in work],
        "sampled tokens": [w.sampled_tokens for w in work],
        "trained tokens": [w.trained_tokens for w in work],
        "GB on disk": [stored_gb(w, shapes) for w in work],
        "hours": [least_hours(w, config, shapes, live, context) for w in work],
    }
    for column in columns.values():
        known = [number for number in column if number is not None]
        column.append(sum(known) if known else None)
    table = Table("stage", *columns, title="at most; hours: at least")
    for stage, *numbers in zip([*(w.stage for w in work), "all"], *columns.values(), strict=True):
        table.add_row(stage, *map(_figure, numbers))
    return table


def _figure(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:,}" if isinstance(number, int) else f"{number:.2f}"
