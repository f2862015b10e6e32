"""Rows that are not used: a file with the reason of each, and a line for each kind."""

import json
from collections import Counter
from collections.abc import Sequence

from pipeline.artifacts.runner import Start
from pipeline.rows import LeftOut
from stages.settings import Config


def tell_left_out(start: Start[Config], left_out: Sequence[LeftOut]) -> dict[str, int]:
    """Writes left_out.jsonl, and says how many rows of each kind are in it and why the first of them is.

    Returns kind -> number, and writes and says nothing if there are none.
    """
    first = {row.kind: row for row in reversed(left_out)}
    kinds = dict(sorted(Counter(row.kind for row in left_out).items()))
    for kind, number in kinds.items():
        row = first[kind]
        start.say(f"rows left out: {number} {kind}, such as {row.source}, row {row.row}: {row.reason}")
    if left_out:
        path = start.output("left_out.jsonl", volatile=True)
        lines = (json.dumps(row._asdict(), ensure_ascii=False) + "\n" for row in left_out)
        path.write_text("".join(lines), encoding="utf-8")
        start.say(f"all of them: {path}")
    return kinds
