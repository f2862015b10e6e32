"""Makes a stage that samples on every node of a Ray cluster, all of which see this folder and `data/`.

    python -m stages.nodes rollouts configs/demo.yaml [what the stage's own command takes]

Each node runs the stage's command with --join. Whichever comes first holds the stage, the others help it.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from pipeline.artifacts.signals import StopFlag, StopRequested
from pipeline.errors import ConfigError, ExitCode
from pipeline.processes.on_ray import cluster, on_every_node

MAX_ROUNDS = 3
"""Times that the nodes are asked: a node that is lost may have been the one that held the stage."""


def verdict(codes: Mapping[str, int | None]) -> ExitCode | None:
    """Returns what the nodes' exit codes mean for the stage; None if it takes another round.

    Example:
        >>> [verdict(codes) for codes in ({"a": 0, "b": 0}, {"a": 0, "b": None}, {"a": 75, "b": 3})]
        [<ExitCode.COMPLETE: 0>, None, <ExitCode.ARTIFACT: 3>]
    """
    judged = [ExitCode(code) for code in codes.values() if code not in (None, ExitCode.STOPPED)]
    if bad := [code for code in judged if code != ExitCode.COMPLETE]:
        return bad[0]
    return ExitCode.COMPLETE if codes and len(judged) == len(codes) else None


def main(argv: Sequence[str]) -> int:
    """Returns the exit code of a stage that the nodes make together."""
    stop = StopFlag()
    with stop.installed():
        try:
            return int(_made(argv, stop))
        except StopRequested as error:
            told, code = (
                f"stopped early by {error}. Next: the same command goes on from here",
                ExitCode.STOPPED,
            )
        except (ConfigError, ConnectionError) as error:
            told, code = str(error), ExitCode.CONFIG
    print(f"nodes: {told}", file=sys.stderr)
    return int(code)


def _made(argv: Sequence[str], stop: StopFlag) -> ExitCode:
    if len(argv) < 2 or argv[0].startswith("-"):
        raise ConfigError("got no stage and configuration. Next: python -m stages.nodes rollouts CONFIG.yaml")
    if find_spec("ray") is None:
        raise ConfigError(
            "the package ray is not installed. Next: pip install -c constraints.txt -e '.[nodes]' on every "
            "node, or a Slurm array, which needs no Ray (docs/launch.md)"
        )
    stage, *rest = argv
    command = [sys.executable, "-m", f"stages.{stage}", *rest, "--join"]
    with cluster():
        for _ in range(MAX_ROUNDS):
            codes = on_every_node(command, stop.raise_if_set)
            for node, code in codes.items():
                print(f"nodes: {node}: {'lost' if code is None else f'exit code {code}'}", file=sys.stderr)
            if (code := verdict(codes)) is not None:
                return code
    print("nodes: some were lost in every round. Next: the same command goes on", file=sys.stderr)
    return ExitCode.STOPPED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
