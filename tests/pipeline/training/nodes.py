"""A start of a stage with a further node, which is an agent of this machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.processes.life import Scope, workers_of
from pipeline.processes.nodes import Nodes

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Pair:
    """This process, which holds a stage's folder, and the agent of another node."""

    folder: Path
    nodes: Nodes
    agent: subprocess.Popen[str]

    def scope(self, patience: float = 1.0) -> Scope:
        """Returns the scope of the start."""
        return Scope(self.folder / "logs" / "start_000", patience, self.nodes)

    def ended(self) -> tuple[int, str]:
        """Returns the agent's exit code, and what it printed."""
        said, _ = self.agent.communicate(timeout=120)
        return self.agent.returncode, said


@contextmanager
def two_nodes(folder: Path, kind: str = "scripted", patience: float = 1.0, **env: str) -> Iterator[Pair]:
    """Gives two nodes that have met; `env` is the agent's."""
    (folder / "logs" / "start_000").mkdir(parents=True)
    command = [sys.executable, "-m", "tests.pipeline.training.agent", str(folder), str(patience), kind]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT) as agent:
        nodes = Nodes(folder, 2, "start_000")
        pair = Pair(folder, nodes, agent)
        try:
            with workers_of(Scope(None, patience)):
                nodes.gather(lambda text: None, lambda: None)
            yield pair
        finally:
            nodes.end(0, "complete")
            agent.kill()
