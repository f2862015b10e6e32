"""Whether a chat template preserves prefixes: if not, a policy is served other ids than it trained on."""

from collections.abc import Callable, Sequence

from env.chat.style import ChatStyle
from pipeline.errors import ConfigError
from pipeline.types import Message

PROBE: tuple[Message, ...] = (
    {"role": "user", "content": "R1: a question, and 555-0102"},
    {"role": "assistant", "content": "<think>\nWho knows?\n</think>\n\n<tool_call>\n{}\n</tool_call>"},
    {"role": "tool", "content": "first answer"},
    {"role": "tool", "content": "\nsecond answer: 12, 34\n"},
    {"role": "assistant", "content": "Then this: <tool_call>\n{}\n</tool_call>"},
    {"role": "tool", "content": "third answer"},
    {"role": "assistant", "content": "<think>\nSo it is.\n</think>\n\nDone."},
    {"role": "user", "content": "Thanks.\n"},
    {"role": "assistant", "content": "1 more word"},
)
"""Thinking, calls, several answers in a row, and words on both sides of a call."""


def check_prefixes(
    style: ChatStyle,
    encode: Callable[[str], Sequence[int]],
    messages: Sequence[Message] = PROBE,
) -> None:
    """Raises ConfigError unless ids of a dialogue only ever grow, by what a player appends.

    Ids of `render(m[:i])` must be a prefix of those of `render(m[:i + 1])`, and what a run of replies adds
    must be the ids of `render_replies(run)`. The dialogue opens with a user's message and ends with an
    assistant's.
    """
    sampled = 0  # length in ids up to and including the last assistant message
    start = 0  # the first message after it
    for i in range(1, len(messages)):
        cue = messages[i]["role"] == "assistant"
        text = style.render(messages[: i + 1])
        shorter, longer = encode(style.render(messages[:i], add_generation_prompt=cue)), encode(text)
        if list(longer[: len(shorter)]) != list(shorter):
            raise ConfigError(
                f"the chat template changes what it wrote of {i} messages when message {i + 1}, of role "
                f"{messages[i]['role']}, follows: ids sampled in one context would be trained in another. "
                "Use a template that leaves earlier messages as they were, or another tokenizer"
            )
        if not cue:
            continue
        added = encode(style.render_replies(messages[start:i])) if start else shorter
        if list(shorter[sampled:]) != list(added):
            raise ConfigError(
                f"messages {start + 1} to {i} as the chat template writes them are other ids than the ones "
                "that a player appends. Use the template of the style, or another tokenizer"
            )
        sampled, start = len(encode(text.removesuffix("\n"))), i + 1  # a message ends with its stop token
