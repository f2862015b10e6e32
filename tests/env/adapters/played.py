"""What the adapters' tests share: tasks, a tokenizer, an agent, and an episode by names and arguments."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from env.adapters.session import Session, text_of
from env.chat.full import FullStyle
from env.phone.episode.tools import TOOLS
from env.phone.offer import PHONE
from env.protocol import Action
from pipeline.models.tiny import train_tokenizer
from pipeline.tables import tasks_table
from tests.env.phone.worlds import mixed_tasks

STYLE = FullStyle(TOOLS)
TASKS = mixed_tasks(15, companies=30, others=2)[:15]
EASY = [task for task in TASKS if task.level <= 2]
"""Levels at which the scripted agent succeeds now and then; above them it never does."""
ROWS: list[dict[str, Any]] = tasks_table(TASKS).to_pylist()
EASY_ROWS: list[dict[str, Any]] = tasks_table(EASY).to_pylist()


def make_tokenizer(folder: Path) -> Any:
    """Returns a small tokenizer that speaks the full style."""
    texts = [STYLE.render_prompt(task.prompt) for task in TASKS]
    made = train_tokenizer(texts, 900, folder, STYLE.template, STYLE.special_tokens)
    assert made.encode("\n", add_special_tokens=False) == [made.convert_tokens_to_ids("Ċ")]
    return made


def reply(prompt: str, rng: Random) -> str:
    """Returns what the scripted agent says to a prompt of the full style."""
    return PHONE.scripted.reply(prompt, rng, STYLE)


Heard = tuple[list[str], float | None]
"""The environment's replies, and the reward of the episode; None where there is none."""


def by_session(row: dict[str, Any], actions: Sequence[Action]) -> Heard:
    session = Session("phone")
    session.start(row)
    calls = [action.calls[0] for action in actions if action.calls]
    texts = [text_of(session.call(call.name, call.arguments).messages) for call in calls]
    return texts, session.verdict().reward
