"""`vdapo`: the commands that look at runs, and `plan`, which needs to know the settings."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pipeline.cli import commands as cli
from pipeline.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code of one command."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] != ["plan"]:
        return cli.main(arguments, others={"plan": "whether a configuration fits its hardware, and its cost"})
    from stages.wiring import plan

    try:
        return plan.main(arguments[1:])
    except ConfigError as error:
        print(f"vdapo: {error}", file=sys.stderr)
        return int(error.code)


if __name__ == "__main__":
    sys.exit(main())
