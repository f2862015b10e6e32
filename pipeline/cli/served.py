"""`vdapo served`: where the policy lies that a run serves."""

import argparse
from pathlib import Path

from pipeline.served import served_policy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path)


def run(options: argparse.Namespace) -> int:
    """Prints the folder, every file of it verified, alone: `vllm serve $(vdapo served data/demo)`."""
    print(served_policy(options.run_dir)[1])
    return 0
