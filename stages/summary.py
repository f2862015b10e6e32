"""Writes data/<run>/summary.json and summary.html from the run's finished stages, and prints the table.

Not a stage: it only reads, so it can be run again at any time.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.disk import check_folder
from pipeline.artifacts.manifest import read_manifest
from pipeline.artifacts.screen import Screen, say_last
from pipeline.config import load_config
from pipeline.errors import explain
from stages.settings import Config
from stages.stored import inputs
from stages.wiring.pages import print_summary, summary_page
from stages.wiring.summary import summarise


def main(argv: Sequence[str] | None = None) -> int:
    """Writes and prints the summary; returns the exit code."""
    parser = argparse.ArgumentParser(prog="summary", description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--run")
    options = parser.parse_intermixed_args(argv)
    run_dir = Path()
    try:
        named = [f"run.name={json.dumps(options.run)}"] if options.run else []
        config = load_config(Config, Path(options.config), [*options.overrides, *named])
        run_dir = Path(config.run.data_dir) / config.run.name
        check_folder(run_dir, f"run.data_dir = {config.run.data_dir}")
        stored_from = inputs(config) if config.stored.objective.kind != "none" else ()
        summary = summarise(run_dir, with_critic=config.actor.reads_critic, stored_from=stored_from)
        (run_dir / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        reports = [Artifact.open(run_dir, stage).report for stage in ("actor", "evaluation")]
        if read_manifest(run_dir / "comparison"):
            reports.append(Artifact.open(run_dir, "comparison").report)
        html = summary_page(run_dir.name, summary, *reports)
        (run_dir / "summary.html").write_text(html, encoding="utf-8")
    except Exception as error:
        if not (explained := explain(error, run_dir)):
            raise
        say_last(f"summary: {explained[1]}", sys.stderr)
        return int(explained[0])
    pages = [("Learning curves", "summary.html")]
    if summary["critic"]:
        pages.append(("Critic report", "critic_report/report.html"))
    screen = Screen(stderr=False)
    print_summary(summary, screen)
    for text, name in pages:
        screen.print(f"{text}: {run_dir / name}", soft_wrap=True, highlight=False)
    say_last("", sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
