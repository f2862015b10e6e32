"""`vdapo view`: the rollouts of a run as a page, by a local server or in one file."""

import argparse
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from pipeline.artifacts.disk import write_durably
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.view.run import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path)
    parser.add_argument("--port", type=int, default=0, help="of the local server (default: any free one)")
    parser.add_argument(
        "--out", type=Path, metavar="PAGE.html", help="write one page that needs no server, for small runs"
    )
    parser.add_argument("--stage", action="append", help="with --out: only this stage; may be repeated")


def run(options: argparse.Namespace) -> int:
    """Serves a run until it is interrupted, or writes its page; returns 0."""
    from pipeline.view.page import offline_page
    from pipeline.view.run import Run

    viewed = Run(options.run_dir)
    if options.out is None:
        if options.stage:
            raise ConfigError("--stage goes with --out; the page of the local server has all stages")
        return _serve(viewed, options.port)
    known = [entry["stage"] for entry in viewed.stages()]
    stages = [stage for stage in known if stage in (options.stage or known)]
    if unknown := set(options.stage or ()) - set(known):
        raise ConfigError(
            f"--stage {', '.join(sorted(unknown))}: no rollouts there; allowed: {', '.join(known)}"
        )
    text = offline_page(viewed, stages)
    if not options.out.parent.is_dir():
        raise ConfigError(f"--out {options.out}: {options.out.parent} is no folder")
    write_durably(options.out, text.encode())
    print(f"wrote {options.out}: {len(text.encode()) / 1e6:.1f} MB, {', '.join(stages)}")
    return 0


def _serve(viewed: "Run", port: int) -> int:
    from pipeline.view.server import ADDRESS, make_server

    try:
        server = make_server(viewed, port)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--port {port}: {error}; allowed: a free port, 0 for any") from None
    with server:
        url = f"http://{ADDRESS}:{server.server_port}/"
        Thread(target=viewed.warm_up, daemon=True).start()  # while the reader's browser comes
        print(f"{url} shows {viewed.run_dir} to this machine alone. Ctrl-C ends it", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("ended")
    return 0
