"""`vdapo`: the commands that look at runs and at configurations."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import explain
from pipeline.text import visible

COMMANDS = {
    "status": ("pipeline.cli.status", "what is done, stage by stage"),
    "show": ("pipeline.cli.show", "the rows of a stage's table; rollouts as dialogues"),
    "view": ("pipeline.cli.view", "the rollouts of a run in a browser, or as one page"),
    "verify": ("pipeline.cli.verify", "every digest, schema, id and count of a run"),
    "plan": ("stages.wiring.plan", "whether a configuration fits its hardware, and its cost"),
    "check-feedback": (
        "stages.wiring.check_feedback",
        "whether a configured feedback server answers, and what",
    ),
    "errors": ("stages.wiring.first_errors", "who finds the first wrong step of labelled solutions"),
    "settings": ("stages.wiring.list_settings", "every setting: value, allowed, source of its default"),
    "dictionary": ("pipeline.cli.dictionary", "every column of every table, as the page data/README.md"),
    "served": ("pipeline.cli.served", "where the policy lies that a run's rounds serve"),
    "monitor": ("pipeline.cli.monitor", "a run's rounds side by side; exit code 4 if somebody should look"),
    "export": (
        "pipeline.cli.export",
        "a run in the forms of verl, TRL, OpenAI, the Hugging Face hub, SQLite",
    ),
}
"""Name -> module with `add_arguments` and `run`, and what --help says. Only the given command is loaded."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code of one command: 0, 2 for wrong usage, 3 for a missing or damaged artifact."""
    try:
        try:
            return _ended(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()  # what nobody reads is noticed here, not at the interpreter's end
    except (BrokenPipeError, SystemExit) as error:  # `| head` has seen enough, of which rich makes an exit
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _ended(arguments: list[str]) -> int:
    """Returns the exit code of one command."""
    parser = argparse.ArgumentParser(prog="vdapo", description="Look at runs, and ahead at what one takes.")
    parsers = parser.add_subparsers(dest="command", required=True)
    command: Any = None
    for name, (module, text) in COMMANDS.items():
        own = parsers.add_parser(name, help=text)
        if arguments[:1] == [name]:
            command = importlib.import_module(module)
            command.add_arguments(own)
    options = parser.parse_args(arguments)
    try:
        return int(command.run(options))
    except Exception as error:
        if not (explained := explain(error, Path())):
            raise
        print(visible(f"vdapo: {explained[1]}"), file=sys.stderr)
        return int(explained[0])


if __name__ == "__main__":
    sys.exit(main())
