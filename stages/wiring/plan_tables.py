"""The tables that `vdapo plan` prints."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from env.catalog import offer_of
from pipeline.cli.tables import figures_table, texts_table
from pipeline.planner.memory import GIB
from stages.settings import Config
from stages.wiring.plan_memory import Memory
from stages.wiring.plan_work import Work, work_of


def memory_table(memory: Memory) -> Table:
    """Returns what every phase takes, and whether it fits."""
    limit = f"of {memory.limit / GIB:.1f}"
    table = texts_table(("phase", "GiB", limit, "parts"), "memory of each GPU or process")
    for name, phase in memory.phases.items():
        parts = ", ".join(f"{part} {size / GIB:.2f}" for part, size in phase.device.items())
        if phase.host:
            held = ", ".join(f"{part} {size / GIB:.0f}" for part, size in phase.host.items())
            parts += f"; in host memory {phase.host_bytes / GIB:.0f}: {held}"
        left = (memory.limit - phase.device_bytes) / GIB
        fits = f"{left:.2f} left" if memory.fits(name) else "DOES NOT FIT"
        table.add_row(name, f"{phase.device_bytes / GIB:.2f}", fits, parts)
    return table


def work_rows(config: Config, work: Sequence[Work]) -> dict[str, tuple[float, ...]]:
    """Returns a run's rows of `work_table`; where steps are a guess, those say so that grow with them."""
    longer = work_of(config, more_steps=1)
    return {
        one.stage + guess_of(config) * (one.rollouts < other.rollouts): one.figures
        for one, other in zip(work, longer, strict=True)
    }


def guess_of(config: Config) -> str:
    """Returns how many steps each rollout is reckoned to have, in words; empty where a spec bounds them."""
    offer = offer_of(config.tasks.environment)
    if offer.splitter == "message":
        return ""
    return f", at {offer.steps_at_most(config.tasks)} {offer.splitter} a rollout"


def work_table(work: Mapping[str, Sequence[float]], title: str = "at most") -> Table:
    """Returns stage -> rollouts, millions of tokens sampled and trained, GB kept, with each stage's shares.

    A share is in %, of all rollouts, which is that of all sampled tokens too where every response is the
    longest, and of all trained tokens.
    """
    figures = ("rollouts", "sampled", "%", "trained", "%", "GB kept")
    table = figures_table("stage", figures, f"{title}; tokens in millions, shares in %")
    totals = [sum(column) for column in zip(*work.values(), strict=True)]
    for stage, (rollouts, sampled, trained, gb) in {**work, "all": totals}.items():
        table.add_row(
            *(stage, f"{rollouts:,.0f}", f"{sampled / 1e6:,.1f}", _share(sampled, totals[1])),
            *(f"{trained / 1e6:,.1f}", _share(trained, totals[2]), f"{gb:.2f}"),
        )
    return table


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}" if part else "-"
