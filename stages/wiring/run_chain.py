"""Prints a run's folder and the stages that its evaluation needs, for scripts, of what a stage is given."""

import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.artifacts.arguments import read_arguments
from pipeline.errors import explain
from stages.settings import Config
from stages.wiring.arms import chain_of


def main(argv: Sequence[str]) -> int:
    """Prints `run.data_dir`/`run.name` and, on a line of its own, the stages; returns the exit code."""
    try:
        _, config = read_arguments("run_chain", Config, argv)
    except Exception as error:
        if not (explained := explain(error, Path())):
            raise
        print(f"run_chain: {explained[1]}", file=sys.stderr)
        return int(explained[0])
    print(Path(config.run.data_dir) / config.run.name)
    print(*chain_of(config, "evaluation"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
