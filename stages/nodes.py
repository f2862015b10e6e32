"""Makes a stage on every node of a Ray cluster, all of which see this folder and `data/`.

    python -m stages.nodes rollouts configs/demo.yaml [what the stage's own command takes]

Each node runs the stage's command, one that samples with --join, one that trains with --nodes. Whichever
comes first holds the stage, the others help it.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pipeline.artifacts.screen import say_last
from pipeline.artifacts.signals import StopFlag, StopRequested
from pipeline.artifacts.start import Stage
from pipeline.errors import ConfigError, ExitCode
from pipeline.processes.on_ray import ALL, cluster, on_every_node

MAX_ROUNDS = 3
"""Times that the nodes are asked: a node that is lost may have been the one that held the stage."""


def verdict(codes: Mapping[str, int | str]) -> int | None:
    """Returns the stage's exit code from those of the nodes; None if some were lost, so that it goes on.

    Example:
        >>> [verdict(codes) for codes in ({"a": 0, "b": 0}, {"a": 0, "b": "lost"}, {"a": 75, "b": 3})]
        [0, None, 3]
    """
    ended = [code for code in codes.values() if isinstance(code, int)]
    if bad := [code for code in ended if code not in (ExitCode.COMPLETE, ExitCode.STOPPED)]:
        return bad[0]
    return 0 if codes and list(codes.values()) == [ExitCode.COMPLETE] * len(codes) else None


def main(argv: Sequence[str]) -> int:
    """Returns the exit code of a stage that the nodes make together."""
    stop = StopFlag()
    with stop.installed():
        try:
            return _made(argv, stop)
        except StopRequested as error:
            told = f"stopped early by {error}. Next: the same command goes on from here"
            code = ExitCode.STOPPED
        except (ConfigError, ConnectionError) as error:
            told, code = str(error), ExitCode.CONFIG
    say_last(f"nodes: {told}", sys.stderr)
    return code


def _made(argv: Sequence[str], stop: StopFlag) -> int:
    if len(argv) < 2 or argv[0].startswith("-"):
        raise ConfigError("got no stage and configuration. Next: python -m stages.nodes rollouts CONFIG.yaml")
    if find_spec("ray") is None:
        raise ConfigError(
            "the package ray is not installed. Next: pip install -c constraints.txt -e '.[nodes]' on every "
            "node, or a Slurm array, which needs no Ray (docs/launch.md)"
        )
    stage, *rest = argv
    together = ["--join"] if _declared(stage).may_have_help else ["--nodes", ALL]
    command = [sys.executable, "-m", f"stages.{stage}", *rest, *together]
    with cluster():
        for _ in range(MAX_ROUNDS):
            codes = on_every_node(command, stop.raise_if_set)
            for node, code in codes.items():
                told = f"exit code {code}" if isinstance(code, int) else f"lost ({code})"
                say_last(f"nodes: {node}: {told}", sys.stderr)
            if (found := verdict(codes)) is not None:
                return found
    say_last("nodes: some were lost in every round. Next: the same command goes on", sys.stderr)
    return ExitCode.STOPPED


def _declared(stage: str) -> Stage[Any, Any]:
    with suppress(ModuleNotFoundError, AttributeError):
        declared: Stage[Any, Any] = import_module(f"stages.{stage}").STAGE
        return declared
    raise ConfigError(
        f"got the stage {stage!r}, and there is none of that name. Next: one of README.md's table"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
