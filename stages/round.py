"""Plays a numbered round: play, label, keep, train, evaluate, promote. Each is a stage of an ordinary run.

The run `data/<run>/rounds/<number>` begins with the policy that is served. Not a stage: what its stages have
made is never made again, so after any stop the same command goes on. Once a round is decided, it begins the
next.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.artifacts.screen import say_last
from pipeline.artifacts.signals import StopFlag, StopRequested
from pipeline.config import load_config
from pipeline.errors import ExitCode, explain
from pipeline.text import visible
from stages.settings import Config
from stages.wiring.rounds import play_round


def main(argv: Sequence[str] | None = None) -> int:
    """Plays the round; returns the exit code, that of a stage that did not end well."""
    parser = argparse.ArgumentParser(prog="round", description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value")
    parser.add_argument("--run")
    parser.add_argument("--round", type=int, metavar="NUMBER", help="default: the one to finish, or the next")
    options, unknown = parser.parse_known_intermixed_args(argv)
    if unknown:
        parser.error(
            f"{' '.join(unknown)}: a round has no options of stages: each of its stages follows from the one "
            "before. Next: leave them out, or give them to one stage, whose configuration is "
            "data/<run>/rounds/<number>.yaml"
        )
    if options.round is not None and options.round < 1:
        parser.error(f"--round {options.round}: rounds are numbered from 1")
    run_dir, stop = Path(), StopFlag()
    try:
        with stop.installed():
            named = [f"run.name={json.dumps(options.run)}"] if options.run else []
            config = load_config(Config, Path(options.config), [*options.overrides, *named])
            run_dir = Path(config.run.data_dir) / config.run.name
            play_round(config, options.round, stop_if_asked=stop.raise_if_set)
    except StopRequested as signal:
        say_last(f"round: stopped early by {signal}. Next: the same command goes on from here", sys.stderr)
        return int(ExitCode.STOPPED)
    except Exception as error:
        if not (explained := explain(error, run_dir)):
            raise
        say_last(visible(f"round: {explained[1]}"), sys.stderr)
        return int(explained[0])
    return int(ExitCode.COMPLETE)


if __name__ == "__main__":
    sys.exit(main())
