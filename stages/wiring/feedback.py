"""Who writes feedback as configured, for a player, and what a stage counts of it."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from env.catalog import offer_of
from env.chat.style import ChatStyle
from env.feedback.protocol import Writer
from env.feedback.reviewer import Reviewer
from env.feedback.self_critique import SelfCritique
from pipeline.engines import Engine
from stages.settings import Config

if TYPE_CHECKING:
    from env.feedback.server import Server
    from pipeline.models.policy import Policy

ANSWERS = "feedback"
"""Folder of a run that keeps what a server answered, for all its stages."""


def feedback_counts(statuses: Iterable[str]) -> dict[str, dict[str, int]]:
    """Returns what a report says of texts that models were asked for: their number by status, if any."""
    counts = Counter(filter(None, statuses))
    return {"feedback": dict(sorted(counts.items()))} if counts else {}


def reviewer_of(config: Config, policy: "Policy", style: ChatStyle, engine: Engine) -> Reviewer | None:
    """Returns who has feedback written as configured; None where rules are all there is.

    A text may fill half of what a prompt has for feedback: the attempt's own messages stand before it.
    """
    kind, max_tokens = config.feedback.kind, max(1, config.prompt.max_feedback_tokens // 2)
    if kind == "rules":
        return None
    writer: Writer = (
        server_of(config)
        if kind == "server"
        else SelfCritique(policy.tokenizer, style, engine.room, max_tokens)
    )
    gives_away = offer_of(config.tasks.environment).gives_away
    return Reviewer(writer, gives_away, policy.tokenizer, max_tokens)


def server_of(config: Config) -> "Server":
    """Returns the configured server, with the answers that the run keeps."""
    from env.feedback.server import Server, ServerOptions  # its client takes seconds to load

    settings = config.feedback
    assert settings.kind == "server"
    options = ServerOptions(**settings.model_dump(exclude={"kind"}))
    return Server(options, Path(config.run.data_dir) / config.run.name / ANSWERS)
