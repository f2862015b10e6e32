"""Renders docs/results.md and the README's tables from benchmarks/results/.

    python -m benchmarks.render             # make results

The words are in benchmarks/results.md.jinja; every number comes from a results file.
"""

from collections.abc import Callable
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from benchmarks import _tables
from benchmarks._ablation_tables import ablations, granularity_over_binary
from benchmarks._lever_tables import lever_table
from benchmarks._regime_table import regimes
from benchmarks._run import ROOT

TEMPLATE = ROOT / "benchmarks" / "results.md.jinja"
PAGE, README = ROOT / "docs" / "results.md", ROOT / "README.md"
TABLES: dict[str, Callable[[], str]] = {"demo": _tables.demo, "regimes": regimes}
"""What stands in the README between `<!-- NAME table -->` and `<!-- end of NAME table -->`."""
WORDS = (
    "figures",
    "cell",
    "by_seed",
    "demo",
    "looks",
    "ahead",
    "at_thresholds",
    "levels",
    "policies",
    "splits",
    "gate",
    "faults",
    "made",
    "present",
    "seeds_of",
)
"""Functions of `_tables` that the template calls."""


def page() -> str:
    """Returns docs/results.md."""
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True)
    environment.globals |= {name: getattr(_tables, name) for name in WORDS}
    environment.globals |= {each.__name__: each for each in (ablations, granularity_over_binary, lever_table)}
    return environment.from_string(TEMPLATE.read_text("utf-8")).render()


def readme() -> str:
    """Returns README.md with its tables between their marks."""
    text = README.read_text("utf-8")
    for name, make in TABLES.items():
        begin, end = f"<!-- {name} table -->", f"<!-- end of {name} table -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{make()}\n{end}{rest.split(end)[1]}"
    return text


PAGES: dict[Path, Callable[[], str]] = {PAGE: page, README: readme}

if __name__ == "__main__":
    for path, make in PAGES.items():
        path.write_text(make(), encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
