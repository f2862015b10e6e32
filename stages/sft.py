"""Makes the starting policy: a tiny Qwen3 and its tokenizer, from demonstrations of mixed quality.

Demonstrations are scripted episodes on training tasks, a share with earlier failed attempts and their
feedback, or recorded solutions and sessions. With `sft.base` it starts from a model instead, and with no
updates takes that model as it is.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from env.catalog import offer_of
from pipeline.errors import ArtifactError
from pipeline.models.folder import check_policy_folder, content_files
from pipeline.runner import Plan, Stage, Start, run_stage
from pipeline.types import Task
from stages.settings import Config
from stages.wiring.demonstrator import shares_of
from stages.wiring.inputs import tasks_of_split
from stages.wiring.preflight import check_installed, check_trunk, slow_adapters, trains_in_ranks


def check_base(folder: Path, needed: Sequence[str]) -> None:
    """Raises ArtifactError if a folder holds no policy, or one with a tokenizer that does not go with it."""
    check_policy_folder(folder)
    try:
        tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    except Exception as error:  # the library raises nothing narrower
        raise ArtifactError(
            f"the tokenizer of sft.base = {folder} is not readable: {error}. Save it again, or name another"
        ) from None
    rows = json.loads((folder / "config.json").read_text("utf-8")).get("vocab_size")
    if rows is not None and max(tokens.values(), default=0) >= rows:
        raise ArtifactError(
            f"the tokenizer of sft.base = {folder} has token ids up to {max(tokens.values())}, but the model "
            f"embeds {rows}: they are of different models. Save both from one model, or name another base"
        )
    for token in needed:
        if token not in tokens:
            raise ArtifactError(
                f"the tokenizer of sft.base = {folder} has no token {token!r}, which begins or ends a "
                "message in this prompt style. Add it, or name another base"
            )


def plan(start: Start[Config]) -> Plan[list[Task]]:
    """Plans the updates, or a single copy where a base is taken as it is."""
    settings, environment = start.config.sft, offer_of(start.config.tasks.environment)
    train = tasks_of_split(start, "train")
    check_trunk(start.config)
    if words := slow_adapters(start.config):
        start.say(words)
    if (settings.base is None or settings.num_updates) and settings.data is None:
        shares_of(settings, environment)
    if settings.base is not None:
        check_base(Path(settings.base), environment.style(start.config.prompt.style).special_tokens)
        if settings.num_updates == 0:
            return Plan(items=[["policy"]], unit="policies", work=train)
    check_installed(start.config, training=True)
    items = [[f"update-{i:06d}" for i in range(settings.num_updates)]]
    rows = settings.num_updates * settings.batch_rows
    shown = "recorded data" if settings.data else settings.num_demonstrations
    estimate = {"demonstrations": shown, "rows": rows}
    return Plan(items=items, unit="updates", estimate=estimate, work=train)


def _files(config: Config) -> list[Path]:
    base = [] if config.sft.base is None else content_files(Path(config.sft.base))
    return [*base, *(config.sft.data.files if config.sft.data else [])]


STAGE = Stage(
    name="sft",
    code_version=6,
    inputs=lambda config: ("tasks",),
    sections=("sft", "training", "tasks", "prompt.style", "prompt.thinking", "prompt.verbosity"),
    files=_files,
    plan=plan,
    make="stages.bodies.sft:make",
    has_ranks=trains_in_ranks,
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
