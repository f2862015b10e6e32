"""Who writes feedback on a failed attempt: a section for each kind of writer."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.settings import Section, runtime, setting

FOUNDING = "the project's founding document"


class Rules(Section):
    """The environment's rules alone, as much as prompt.verbosity tells."""

    kind: Literal["rules"] = "rules"


class Server(Section):
    """A model behind any server of OpenAI's protocol, told what the rules say (docs/feedback.md)."""

    kind: Literal["server"] = "server"
    url: str = runtime(
        "http://127.0.0.1:8000/v1",
        "of the server, with /v1, without a password: a key belongs in OPENAI_API_KEY",
        pattern=r"^https?://[^\s@]+$",
    )
    model: str = setting("feedback", "the server's name for it: vLLM's --served-model-name", min_length=1)
    temperature: float = setting(0.0, "of its sampling; 0 is greedy", source=FOUNDING, ge=0)
    max_tokens: int = setting(2000, "that it may write, thoughts included", source=FOUNDING, ge=1)
    seed: int = setting(14, "of its sampling", source=FOUNDING, ge=0)
    stop_token_ids: tuple[int, ...] = setting(
        (), "of that model's tokenizer, beside its own end of a message: Llama 3's are 128001 and 128009"
    )
    timeout_s: float = runtime(60.0, "of one try, until its last byte; there are 4", gt=0)
    requests_per_minute: float | None = runtime(
        None, "of all processes together; null: as many as they can, 16 each at once", gt=0
    )


class SelfCritique(Section):
    """The policy that plays, by the stage's own engine, greedily."""

    kind: Literal["self"] = "self"


Feedback = Annotated[Rules | Server | SelfCritique, Field(discriminator="kind")]
