"""The command line of a stage."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.config import load_config
from pipeline.settings import Section


def read_arguments(
    name: str, config_model: type[Section], argv: Sequence[str]
) -> tuple[argparse.Namespace, Any]:
    """Returns the options of a stage's command line, and its configuration; ConfigError for a wrong one."""
    options = _parser(name).parse_intermixed_args(argv)
    named = [f"run.name={json.dumps(options.run)}"] if options.run else []
    return options, load_config(config_model, Path(options.config), [*options.overrides, *named])


def _parser(name: str) -> argparse.ArgumentParser:
    about = f"Makes data/<run>/{name}/; run it again after any stop."
    parser = argparse.ArgumentParser(prog=name, description=about)
    parser.add_argument("config", metavar="CONFIG.yaml", help="the experiment")
    # Without a default argparse asks for at least one.
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value", help="settings")
    parser.add_argument("--run", metavar="NAME", help="folder under data_dir (run.name)")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and make nothing")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--join", action="store_true", help="help whoever holds the stage, or hold it")
    again.add_argument("--fresh", action="store_true", help="move the old folder to _old/ and begin again")
    again.add_argument("--repair", action="store_true", help="make again what is damaged or failed too often")
    return parser
