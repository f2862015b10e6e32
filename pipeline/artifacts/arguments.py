"""The command line of a stage."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config import load_config
from pipeline.errors import ConfigError
from pipeline.settings import Section

if TYPE_CHECKING:
    from pipeline.artifacts.start import Stage

LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that DeepSpeed's launcher sets."""


def read_arguments(
    name: str, config_model: type[Section], argv: Sequence[str]
) -> tuple[argparse.Namespace, Any]:
    """Returns the options of a stage's command line, and its configuration; ConfigError for a wrong one."""
    options = _parser(name).parse_intermixed_args(argv)
    named = [f"run.name={json.dumps(options.run)}"] if options.run else []
    return options, load_config(config_model, Path(options.config), [*options.overrides, *named])


def check_help(stage: Stage[Any, Any], options: argparse.Namespace, config: Any) -> None:
    """Raises ConfigError where other nodes cannot help with a stage in the way that is asked for."""
    next_move = "Next: the same command without it, on one node"
    if options.join and not stage.may_have_help:
        raise ConfigError(
            f"--join: {stage.name} is made by one process. Allowed with --join: rollouts, labels, "
            f"critic_report, evaluation; with --nodes: stages that train. {next_move}"
        )
    if options.nodes > 1 and not stage.has_ranks(config):
        raise ConfigError(
            f"--nodes {options.nodes}: {stage.name} trains in no ranks, as configured. Allowed with --nodes: "
            "sft, critic, stored, actor and dpo with training.backend=deepspeed; with --join: stages that "
            f"sample. {next_move}"
        )


def is_one_too_many() -> bool:
    """Returns whether a launcher has started this process beside another one of its node.

    DeepSpeed's starts one for each GPU, where a stage starts its ranks itself. What it set for each of them
    is forgotten: others that this process starts would read it.
    """
    place = int(os.environ.get("LOCAL_RANK", "0"))
    for name in LAUNCHER:
        os.environ.pop(name, None)
    return place > 0


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
    text = "train with the ranks of N nodes; each gets this command, and any of them holds the stage"
    again.add_argument("--nodes", type=_positive, default=1, metavar="N", help=text)
    again.add_argument("--repair", action="store_true", help="make again what is damaged or failed too often")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} nodes are no node")
    return number
