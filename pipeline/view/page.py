"""The page: its files, what it may load, and the page with everything inside it that needs no server."""

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.view.rollout import rollouts_at, shown, tokens_at
from pipeline.view.run import Run

HTML, CSS, JS = (Path(__file__).with_name(f"view.{kind}") for kind in ("html", "css", "js"))
NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'"
NO_MARKUP = "require-trusted-types-for 'script'; trusted-types 'none'"
"""A script that would make markup of a text fails."""
UNFRAMED = "frame-ancestors 'none'"
POLICY = f"{NOTHING}; script-src 'self'; style-src 'self'; connect-src 'self'; {NO_MARKUP}; {UNFRAMED}"
"""Of the page: its own script, style and answers."""
REPORT_POLICY = f"{NOTHING}; style-src 'unsafe-inline'; img-src data:; {UNFRAMED}"
"""Of the reports of a run, as they have it themselves: no script at all."""
LARGEST = 40 * 2**20
"""Bytes of rollouts, before compression, that one file may hold: more makes browsers slow."""


def offline_page(run: Run, stages: Sequence[str]) -> str:
    """Returns one page with all rollouts of some stages; ConfigError if they are too large for one file."""
    facts = run.facts()
    facts["stages"] = [entry for entry in facts["stages"] if entry["stage"] in stages]
    tables = [run.index(stage).tables for stage in stages]
    size = sum(of[name].num_bytes for of in tables for name in ("rollouts", "steps"))
    if size > LARGEST:
        names = " ".join(entry["stage"] for entry in facts["stages"])
        raise ConfigError(
            f"the rollouts of {names} take {size / 2**20:.0f} MB; allowed in one page: "
            f"{LARGEST / 2**20:.0f} MB. Next: name stages with --stage, or leave "
            "--out away: a local server shows runs of any size"
        )
    data: dict[str, Any] = {"facts": facts, "stages": {stage: _stage(run, stage) for stage in stages}}
    # A text may hold "</script>": no "<" stays in the data.
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    style, script = CSS.read_text("utf-8"), JS.read_text("utf-8")
    policy = f"{NOTHING}; script-src '{_hash(script)}'; style-src '{_hash(style)}'; {NO_MARKUP}"
    return (
        HTML.read_text("utf-8")
        .replace("<!-- policy -->", f'<meta http-equiv="Content-Security-Policy" content="{policy}">')
        .replace('<link rel="stylesheet" href="view.css">', f"<style>{style}</style>")
        .replace(
            '<script src="view.js"></script>',
            f'<script type="application/json" id="data">{text}</script>\n<script>{script}</script>',
        )
    )


def _stage(run: Run, stage: str) -> dict[str, Any]:
    index = run.index(stage)
    rows = range(index.num_rows)
    return {
        "version": index.version,
        "rows": index.num_rows,
        "columns": index.columns,
        "step_columns": index.step_columns,
        "briefs": shown(index.briefs(rows)),
        "rollouts": rollouts_at(run, index, rows),
        "tokens": tokens_at(run, index, rows),
    }


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
