"""Two nodes of a Ray cluster on this machine, while stdin is open; prints address and process ids."""

import json
import sys

from ray.cluster_utils import Cluster


def pids(node):
    return [info.process.pid for infos in node.all_processes.values() for info in infos]


if __name__ == "__main__":
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes = [cluster.head_node, cluster.add_node(num_cpus=1)]
    print(json.dumps({"address": cluster.address, "nodes": [pids(node) for node in nodes]}), flush=True)
    sys.stdin.read()
    cluster.shutdown()
