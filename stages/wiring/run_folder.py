"""Prints the folder of a run, for scripts that are given what a stage is given: CONFIG and its options."""

import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.artifacts.arguments import read_arguments
from pipeline.errors import explain
from stages.settings import Config


def main(argv: Sequence[str]) -> int:
    """Prints `run.data_dir`/`run.name`; returns the exit code."""
    try:
        _, config = read_arguments("run_folder", Config, argv)
    except Exception as error:
        if not (explained := explain(error, Path())):
            raise
        print(f"run_folder: {explained[1]}", file=sys.stderr)
        return int(explained[0])
    print(Path(config.run.data_dir) / config.run.name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
