"""What a server of OpenAI's protocol answers, read from the bytes of its response."""

import json
from typing import NamedTuple

from env.feedback.failures import CallError
from env.feedback.leak_guard import END_THINK


class Completion(NamedTuple):
    """A text that a model wrote, and whether it thought before it."""

    text: str
    num_tokens: int
    is_cut: bool  # at max_tokens
    is_thinkers: bool  # a thought ended in it, or the server took one out of it


def completion_of(raw: bytes) -> Completion:
    """Returns what a response holds; raises CallError if it holds no text."""
    try:
        data = json.loads(raw)
        choice = data["choices"][0]
        message = choice["message"]
        text = message["content"]
        is_cut = choice.get("finish_reason") == "length"
        thought = message.get("reasoning_content") or message.get("reasoning")
        tokens = (data.get("usage") or {}).get("completion_tokens") or 0
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CallError("garbled", f"{type(error).__name__} in {raw[:80]!r}") from None
    if text is None and is_cut:  # it thought to the end
        text, thought = "", True
    if not isinstance(text, str) or not isinstance(tokens, int) or not 0 <= tokens < 2**31:
        raise CallError("garbled", f"no text in {raw[:80]!r}")
    return Completion(text, tokens, is_cut, bool(thought) or END_THINK in text)
