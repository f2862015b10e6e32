"""`vdapo check-feedback CONFIG`: asks the configured server twice, before anything expensive."""

import argparse
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from env.feedback.failures import CallError
from env.feedback.leak_guard import guarded
from env.feedback.protocol import Ask
from env.feedback.request import INSTRUCTIONS
from pipeline.config import load_config
from pipeline.errors import ConfigError
from pipeline.text import visible
from stages.settings import Config
from stages.wiring.feedback import server_of
from stages.wiring.preflight import check_client

UNUSABLE = {
    "cut_off": "a larger feedback.max_tokens, a server that keeps thoughts apart (vLLM: --reasoning-parser), "
    "or a model that does not think: the text ended at max_tokens, and may be all thought",
    "empty": "another feedback.model: it says nothing",
    "refusal": "mend the server, or another feedback.model: this is an error or a refusal as a text",
}
"""What a server that works never answers to the sample -> what to do."""
SAMPLE = """TASK
> user: Reply with the name of the colour that is asked for, in capital letters, and nothing else.
> user: Which colour has a clear sky at noon?
ATTEMPT
> assistant: I think that it is blue.
CHECKER
> Not solved. The reply had other words, and no capital letters.
FEEDBACK"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("config", type=Path, help="a YAML")
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value")


def run(options: argparse.Namespace) -> int:
    """Prints what the server answers to a sample, how fast, and whether twice the same; returns 0.

    Raises ConfigError if it does not answer, or not with a text.
    """
    config, console = load_config(Config, options.config, options.overrides), Console()
    settings = config.feedback
    if settings.kind != "server":
        console.print(f"feedback.kind = {settings.kind}: there is no server to check")
        return 0
    check_client()
    ask = Ask("check", ({"role": "user", "content": f"{INSTRUCTIONS}\n{SAMPLE}"},))
    server, texts, began = server_of(config), list[str](), time.monotonic()
    for _ in range(2):
        try:
            answer = server.call(ask)
        except CallError as error:
            raise ConfigError(
                f"feedback.url = {settings.url}, feedback.model = {settings.model}: no feedback ({error}). "
                "Next: start the server (docs/feedback.md), or correct feedback.url, model or max_tokens"
            ) from None
        texts.append(answer.text)
        shown = guarded(answer.text, lambda text: False)
        if (status := answer.status if answer.status != "ok" else shown.status) in UNUSABLE:
            raise ConfigError(
                f"feedback.url = {settings.url}, feedback.model = {settings.model}: no feedback ({status}: "
                f"{answer.text[:200]!r}). Next: {UNUSABLE[status]}"
            )
    seconds = (time.monotonic() - began) / 2
    lines = [
        f"{settings.url} answers as {settings.model}: {seconds:.1f} s, {answer.num_tokens} tokens each",
        f"answer: {answer.text[:2000]}",
        f"a policy would be shown: {shown.text}" if shown.text else f"no policy would see it: {shown.status}",
        f"the second answer is {'the same' if texts[0] == texts[1] else 'another'}",
    ]
    console.print(Text(visible("\n".join(lines))), soft_wrap=True)
    return 0
