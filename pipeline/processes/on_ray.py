"""A command on every node of a Ray cluster: Ray starts processes here, which know nothing of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

TICK = 0.5  # seconds between two looks at the nodes
ALL = "{nodes}"
"""Word of a command that stands for the number of nodes that run it."""


@contextmanager
def cluster() -> Iterator[None]:
    """Is connected to the cluster that RAY_ADDRESS names, or that this machine belongs to, while inside.

    Raises ConnectionError if there is none. What was started inside and still runs is ended, perhaps killed.
    """
    import ray

    address = os.environ.get("RAY_ADDRESS", "auto")
    ray.init(address=address, logging_level=logging.WARNING, configure_logging=False)
    try:
        yield
    finally:
        ray.shutdown()


def on_every_node(command: Sequence[str], look: Callable[[], None]) -> dict[str, int | str]:
    """Returns node -> exit code of a command that every node runs once, or how the node, or it, was lost.

    It runs in the folder of this process, with the environment of `ray start`; each needs one CPU and all
    GPUs of its node. Where some nodes have GPUs the others are left out. `look` is called several times a
    second; what it raises ends the waiting.
    """
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # By value: a worker of Ray's need not be able to import this module.
    @ray.remote(max_retries=0)
    def run(command: Sequence[str], folder: str) -> int:
        import ctypes
        import signal
        import subprocess

        libc = ctypes.CDLL(None)

        def die_with_parent() -> None:
            libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: a stage whose worker is lost stops

        environment = dict(os.environ)
        environment.pop("OMP_NUM_THREADS", None)  # Ray sets it to the CPUs that were asked for
        return subprocess.run(command, cwd=folder, env=environment, preexec_fn=die_with_parent).returncode

    tasks, nodes = {}, wanted(ray.nodes())
    command = [str(len(nodes)) if word == ALL else word for word in command]
    for node in nodes:
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        asked = {"num_cpus": 1, "num_gpus": node["Resources"].get("GPU", 0), "scheduling_strategy": strategy}
        name = f"{node['NodeManagerHostname']} {node['NodeID'][:8]}"
        tasks[run.options(**asked).remote(command, os.getcwd())] = name
    codes: dict[str, int | str] = {}
    while len(codes) < len(tasks):
        look()
        ended, _ = ray.wait([task for task, name in tasks.items() if name not in codes], timeout=TICK)
        for task in ended:
            try:
                code = ray.get(task)
                codes[tasks[task]] = code if code >= 0 else f"killed by signal {-code}"
            except RayError as error:
                codes[tasks[task]] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return codes


def wanted(nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the live nodes with a CPU for a command; only those with GPUs where there are any.

    Example:
        >>> [x["NodeID"] for x in wanted([
        ...     {"NodeID": "a", "Alive": True, "Resources": {"CPU": 4.0}},
        ...     {"NodeID": "b", "Alive": True, "Resources": {"CPU": 4.0, "GPU": 8.0}},
        ...     {"NodeID": "c", "Alive": False, "Resources": {"CPU": 4.0, "GPU": 8.0}},
        ... ])]
        ['b']
    """
    able = [node for node in nodes if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    return [node for node in able if node["Resources"].get("GPU")] or able
