"""What levers came to, as a table of docs/results.md."""

from benchmarks import levers, sparse_grid, sparse_levers
from benchmarks._levers import COUNTED, TO_THRESHOLD
from benchmarks._tables import grid, rows_of, with_bounds

KNOWN = {"levers": levers.LEVERS, "sparse_grid": sparse_grid.LEVERS, "sparse_levers": sparse_levers.LEVERS}
COLUMNS = {
    "success at the end": "success at the end",
    "rollouts": "rollouts",
    TO_THRESHOLD: TO_THRESHOLD,
    f"ahead by {COUNTED[0]}": "ahead at equal rollouts",
    f"ahead by {COUNTED[1]}": "were values free",
}
"""Metric -> what its column is called."""


def lever_table(name: str) -> str:
    """Returns what each lever that ran ended with and has over the arm beside it; then those arms."""
    by_seed = {seed: {(r.variant, r.metric): r for r in table.rows} for seed, table in rows_of(name).items()}
    kept = {metric for rows in by_seed.values() for _, metric in rows}
    columns = {metric: words for metric, words in COLUMNS.items() if metric in kept}
    beside = {lever: other for lever, (_, other, _) in KNOWN[name].items()}
    lines = []
    for arm in [*beside, *dict.fromkeys(other for other in beside.values() if other not in beside)]:
        for seed, rows in by_seed.items():
            if (arm, "rollouts") in rows:
                found = [rows.get((arm, metric)) for metric in columns]
                figures = ["" if row is None else with_bounds(row, 3) for row in found]
                lines.append([arm, beside.get(arm, ""), str(seed), *figures])
    return grid(["", "beside", "seed", *columns.values()], lines)
