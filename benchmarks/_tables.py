"""Results as text: numbers with their bounds, and one Markdown table for each section of docs/results.md."""

import json
import math
from collections.abc import Callable, Iterable, Sequence

from benchmarks import _looks
from benchmarks._results import Row, Table, read_rows
from benchmarks._run import RESULTS
from benchmarks.demo_seeds import BESIDE, OPPONENT, PARTS
from benchmarks.phone_policies import named
from pipeline.statistics import wilson


def rows_of(name: str) -> dict[int, Table]:
    """Returns seed -> rows of a benchmark's results; of `one+another` both, on the seeds that both have."""
    first, *more = name.split("+")
    rows = _rows_of(first)
    for other in map(_rows_of, more):
        rows = {seed: Table([*rows[seed].rows, *other[seed].rows]) for seed in rows.keys() & other.keys()}
    return dict(sorted(rows.items()))


def _rows_of(name: str) -> dict[int, Table]:
    files = [*RESULTS.glob(f"{name}.json")] or [*RESULTS.glob(f"{name}-seed*.json")]
    if not files:
        raise FileNotFoundError(f"no results of {name} in {RESULTS}; run python -m benchmarks.{name}")
    by_seed = {int(path.stem.partition("-seed")[2] or 0): path for path in files}
    return {seed: Table(read_rows(by_seed[seed])) for seed in sorted(by_seed)}


def seeds_of(name: str) -> str:
    """Returns the seeds of a benchmark's results: `5, 6, 8`."""
    return ", ".join(map(str, rows_of(name)))


def present(name: str) -> bool:
    """Returns whether a benchmark has results; one that needs another machine may have none yet."""
    return any([*RESULTS.glob(f"{name}.json"), *RESULTS.glob(f"{name}-seed*.json")])


def number(value: float | None, digits: int = 2) -> str:
    """Returns a number as text; large ones with thousands, an unknown one as a dash."""
    if value is None or math.isnan(value):
        return "-"
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}f}"


def with_bounds(row: Row, digits: int = 2) -> str:
    """Returns `value [low, high]`, or the value alone if it has no bounds."""
    if row.low is None and row.high is None:
        return number(row.value, digits)
    return f"{number(row.value, digits)} [{number(row.low, digits)}, {number(row.high, digits)}]"


def over_seeds(tables: Iterable[Table], variant: str, metric: str) -> Row:
    """Returns the mean of a figure over seeds, with its outermost bounds; none where one seed has none."""
    rows = [table.row(variant, metric) for table in tables]
    values, lows, highs = ([getattr(row, name) for row in rows] for name in ("value", "low", "high"))
    mean = None if None in values else sum(values) / len(values)
    counts = [row.n for row in rows if row.n is not None]
    return Row(
        variant,
        metric,
        mean,
        None if None in lows else min(lows),
        None if None in highs else max(highs),
        sum(counts),
    )


def grid(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    rows = [list(head), ["---"] * len(head), *([*line] for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def figures(
    name: str,
    variants: Sequence[str] | None,
    metrics: dict[str, str],
    digits: int = 2,
    first: str = "",
    seed: int | None = None,
) -> str:
    """Returns a table of a benchmark: a line for each variant, a column for each metric.

    Figures are of one seed, or means over all of them.
    """
    by_seed = rows_of(name)
    tables = list(by_seed.values()) if seed is None else [by_seed[seed]]
    shown = variants or tables[0].variants(next(iter(metrics)))
    return grid(
        [first, *metrics.values()],
        ([v, *(with_bounds(over_seeds(tables, v, metric), digits) for metric in metrics)] for v in shown),
    )


def cell(
    name: str, variant: str, metric: str, digits: int = 2, seed: int | None = None, *, bare: bool = False
) -> str:
    """Returns one figure as text: of one seed, or the mean of all; `bare` leaves its bounds out."""
    tables = rows_of(name)
    row = over_seeds(tables.values() if seed is None else [tables[seed]], variant, metric)
    return number(row.value, digits) if bare else with_bounds(row, digits)


def by_seed(name: str, variant: str, metric: str, digits: int = 2) -> str:
    """Returns a figure at every seed: `0.68, 0.71, 0.66`."""
    return ", ".join(number(table(variant, metric), digits) for table in rows_of(name).values())


def percent(value: float) -> str:
    """Returns a share in percent, without the sign."""
    return f"{100 * value:.1f}"


def change(table: Table, variant: str) -> str:
    """Returns `start -> actor (gain [low, high])`, in percent and points."""
    start, actor = (percent(table(variant, who)) for who in ("start", "actor"))
    return f"{start} -> {actor} ({in_points(table.row(variant, 'gain'))})"


def in_points(row: Row) -> str:
    """Returns `+3.4 [+1.2, +5.5]`, a difference of shares in points."""
    low, high = (f"{100 * x:+.1f}" if x is not None else "-" for x in (row.low, row.high))
    return f"{100 * (row.value or 0):+.1f} [{low}, {high}]"


def demo() -> str:
    """Returns the demo's table: a column for each seed."""
    tables = rows_of("demo_seeds")
    lines: dict[str, Callable[[Table], str]] = {
        **{part: lambda t, part=part: change(t, part) for part in PARTS.values()},  # type: ignore[misc]
        "critic's gate; skill against a constant": lambda t: (
            f"{'PASS' if t('critic', 'gate passed') else 'FAIL'}; "
            + with_bounds(t.row("critic", "skill against constant"))
        ),
        "minutes": lambda t: number(t("run", "minutes"), 1),
        OPPONENT: lambda t: change(t, OPPONENT),
        "the demo ahead of it, points": lambda t: in_points(t.row(BESIDE, "ahead")),
        "rollouts: the demo; decoupled clip": lambda t: (
            f"{number(t('run', 'rollouts sampled'))}; {number(t(OPPONENT, 'rollouts'))}"
        ),
    }
    head = ["", *(f"seed {seed}" for seed in tables)]
    return grid(head, ([name, *(show(table) for table in tables.values())] for name, show in lines.items()))


def looks(name: str, against: str, regime: str = "") -> str:
    """Returns the arms of a comparison whose results are looks, beside one of them."""
    head = [
        "arm",
        "rollouts",
        "of these for the critic",
        "success",
        "rollouts to the threshold",
        f"success beside {against}",
        "p",
        "times fewer rollouts",
        "p",
        "tokens",
        "seconds",
    ]
    return grid(head, _looks.lines(regime or name, rows_of(name), against))


def at_thresholds(name: str, goals: Sequence[float], against: str = "decoupled_clip") -> str:
    """Returns how many times the rollouts of each arm of a regime another one needs to each of some goals."""
    head = ["times fewer rollouts, to", *(f"{100 * goal:g} %" for goal in goals)]
    return grid(head, _looks.at_thresholds(name, rows_of(name), against, goals))


def ahead(
    name: str, arm: str, against: str, regime: str = "", *, fresh: bool = False, seeds: Sequence[int] = ()
) -> str:
    """Returns by how much an arm is ahead of another at equal (or fresh) rollouts, on all seeds or some."""
    tables = {seed: table for seed, table in rows_of(name).items() if not seeds or seed in seeds}
    return _looks.ahead(regime or name, tables, arm, against, fresh=fresh)


def levels() -> str:
    """Returns what the actor gains at each level and on unseen companies."""
    [table] = rows_of("phone_levels").values()
    shown = {**{f"level {i}": f"level {i}" for i in (1, 2, 3)}, "unseen companies": "test_unseen_company"}
    return grid(list(shown), [[change(table, slice_) for slice_ in shown.values()]])


def policies() -> str:
    """Returns success of each policy by level with half of its Wilson interval, priced reward in brackets."""
    [table] = rows_of("phone_policies").values()
    names = [v.removeprefix("train L1 ") for v in table.variants("priced") if v.startswith("train L1 ")]

    def shown(policy: str, level: int) -> str:
        row = table.row(named("train", level, policy), "success")
        interval = wilson(round((row.value or 0) * (row.n or 1)), row.n or 1)
        half = (interval.high - interval.low) / 2
        return f"{row.value:.2f} ± {half:.2f} ({table(row.variant, 'priced'):.2f})"

    return grid(
        ["policy", *(f"L{i}" for i in range(1, 6))], ([p, *(shown(p, i) for i in range(1, 6))] for p in names)
    )


def splits(names: dict[str, str], policies: Sequence[str]) -> str:
    """Returns success at levels 1 to 5 of some policies, a line for each split."""
    [table] = rows_of("phone_policies").values()
    return grid(
        ["split", *policies],
        (
            [
                label,
                *(
                    " ".join(f"{table(named(split, i, p), 'success'):.2f}" for i in range(1, 6))
                    for p in policies
                ),
            ]
            for split, label in names.items()
        ),
    )


def gate(seed: int) -> str:
    """Returns what the gate said of each critic at a seed."""
    table = rows_of("critic_gate")[seed]
    shown = ("ev", "ev_within", "rho_a", "skill_over_task_rate", "skill_over_position", "ece_excess")
    lines = []
    for critic in table.variants("ev"):
        failed = [
            r.metric.removeprefix("meets ")
            for r in table.rows
            if r.variant == critic and r.metric.startswith("meets ") and not r.value
        ]
        verdict = "PASS" if table(critic, "passed") else "FAIL"
        lines.append([critic, verdict, ", ".join(failed), *(number(table(critic, name)) for name in shown)])
    return grid(["critic", "gate", "fails", *shown], lines)


def faults() -> str:
    """Returns the faults of every seed of `mutants`, and whether the tests caught them."""
    return grid(
        ["seed", "fault", "caught"],
        (
            [str(seed), variant, number(table(variant, "caught"))]
            for seed, table in rows_of("mutants").items()
            for variant in table.variants("caught")
        ),
    )


def made(name: str) -> str:
    """Returns the commands and commits of a benchmark's results, and the criteria that were not met."""
    lines = []
    for seed in rows_of(name):
        path = next(p for p in (RESULTS / f"{name}-seed{seed}.json", RESULTS / f"{name}.json") if p.is_file())
        found = json.loads(path.read_text("utf-8"))
        failed = [criterion for criterion, met in found["criteria"].items() if not met]
        lines.append(
            f"`{found['command']}` at {found['commit']}"
            + (f"; not met: {', '.join(failed)}" if failed else "")
        )
    return "Made by " + ";\n".join(dict.fromkeys(lines)) + "."
