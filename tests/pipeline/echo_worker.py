"""A worker for tests: does what it is told, and says so."""

import os
import subprocess
import sys
import time

from pipeline.processes.shared_weights import read_shared
from pipeline.processes.worker import connect_to_parent


def main() -> None:
    connection = connect_to_parent()
    while True:
        try:
            kind, content = connection.recv()
        except EOFError:
            return
        if kind == "say":
            print(content, flush=True)
        elif kind == "exit":
            sys.exit(content)
        elif kind == "hang":
            time.sleep(3600)
        elif kind == "child":
            connection.send(subprocess.Popen(["sleep", "3600"]).pid)
            continue
        elif kind == "read":
            connection.send({name: tensor.tolist() for name, tensor in read_shared(content)})
            continue
        connection.send((kind, os.getpid()))


if __name__ == "__main__":
    main()
