"""`vdapo`: the commands that look at runs, and `plan`, which needs to know the settings."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.cli import dictionary, export, show, status, verify
from pipeline.errors import explain
from pipeline.text import visible
from stages.wiring import list_settings, plan

COMMANDS = (status, show, verify, plan, list_settings, dictionary, export)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code of one command: 0, 2 for wrong usage, 3 for a missing or damaged artifact."""
    parser = argparse.ArgumentParser(prog="vdapo", description="Look at runs, and ahead at what one takes.")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in COMMANDS:
        command.add_to(commands)
    options = parser.parse_args(argv)
    try:
        return int(options.run(options))
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not (explained := explain(error, Path())):
            raise
        print(visible(f"vdapo: {explained[1]}"), file=sys.stderr)
        return int(explained[0])


if __name__ == "__main__":
    sys.exit(main())
