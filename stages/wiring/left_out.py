"""What is not used of rows: a file with the reason of each that is left out, and lines that say it."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from env.chat.style import ChatStyle
from env.sessions import thoughts_lost
from env.solutions import Solution
from pipeline.rows import LeftOut
from pipeline.runner import Start
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


def tell_thoughts_lost(start: Start[Config], used: Iterable[Solution], style: ChatStyle) -> int:
    """Returns how many messages of sessions lose the thought before them, and says so if any does."""
    lost = sum(thoughts_lost(one.session, style) for one in used if one.session is not None)
    if lost:
        start.say(
            f"{lost} messages lose the thought before them: this run's style has none. prompt.style: full "
            "with prompt.thinking: true has"
        )
    return lost
