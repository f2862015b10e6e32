"""What the benchmarks of engines share: a policy of the demo's size, and a player on each engine."""

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks._run import ROOT, Asked, make_stages
from env.play.chains import Chained, plan_groups
from env.play.player import Player
from env.play.queue import play_unit
from pipeline.config import load_config
from pipeline.engines import Generation, GenerationRequest
from pipeline.types import Rollout, Task
from stages.settings import Config
from stages.settings.sampling import Chain
from stages.wiring.player import make_player

CONFIG = "configs/demo.yaml"
SETTINGS = (
    "sft.practice_tasks=3600",
    "sft.num_demonstrations=4800",
    "sft.num_updates=300",
    "tasks.num_train=400",
)
"""A policy that plays whole episodes, after a minute instead of four."""
CHAIN = Chain(num_attempts=4, draws=2, feedback_free_share=0.0)
MAX_FEEDBACK_TOKENS = 400


class SentPrefixes:
    """The prefixes, in whole blocks, of everything that was sent.

    Args:
        block: tokens of a block.

    Example:
        >>> sent = SentPrefixes(block=2)
        >>> sent.add([1, 2, 3, 4, 5])
        >>> sent.cacheable([1, 2, 3, 4, 9, 9]), sent.cacheable([1, 2, 3, 4]), sent.cacheable([2, 1])
        (4, 2, 0)
    """

    def __init__(self, block: int) -> None:
        self._block = block
        self._known: set[tuple[int, ...]] = set()

    def add(self, tokens: Sequence[int]) -> None:
        """Notes a sequence whose keys and values were computed."""
        ends = range(self._block, len(tokens) + 1, self._block)
        self._known.update(tuple(tokens[:end]) for end in ends)

    def cacheable(self, prompt: Sequence[int]) -> int:
        """Returns the tokens in full blocks of the longest prefix known, the prompt's last token excepted."""
        size = 0
        while size + self._block < len(prompt) and tuple(prompt[: size + self._block]) in self._known:
            size += self._block
        return size


@dataclass
class Recorder:
    """An engine that notes what passes: requests in order, answers, and what of each prompt was cacheable.

    Attributes:
        engine: does the work.
        sent: of this engine, with its block size; None notes no prefixes.
    """

    engine: Any
    sent: SentPrefixes | None = None
    requests: dict[str, GenerationRequest] = field(default_factory=dict)
    generations: dict[str, Generation] = field(default_factory=dict)
    cacheable: dict[str, int] = field(default_factory=dict)

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Notes the requests, the earlier of them as sent before the later ones, and passes them on."""
        for request in requests:
            self.requests[request.request_id] = request
            if self.sent is not None:
                self.cacheable[request.request_id] = self.sent.cacheable(request.prompt_token_ids)
                self.sent.add(request.prompt_token_ids)
        self.engine.submit(requests)

    def collect(self) -> list[Generation]:
        """Passes answers on and notes them; a last token is never sent, so it has no keys and values."""
        found: list[Generation] = self.engine.collect()
        for generation in found:
            self.generations[generation.request_id] = generation
            if self.sent is not None:
                prompt = self.requests[generation.request_id].prompt_token_ids
                self.sent.add([*prompt, *generation.token_ids[:-1]])
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@dataclass(frozen=True)
class Bench:
    """What the parts share: a policy's folder, its configuration, tasks, a player on each engine."""

    config: Config
    folder: Path
    tasks: Sequence[Task]
    players: Mapping[str, Player]

    def play(self, kind: str, iteration: int, engine: Any = None) -> list[Rollout]:
        """Returns the rollouts of a chain for every task; another iteration is other draws."""
        player = self.players[kind]
        if engine is not None:
            player = replace(player, engine=engine)
        groups = plan_groups(
            self.tasks,
            stage_key="benchmark",
            seed=0,
            iteration=iteration,
            num_attempts=CHAIN.num_attempts,
            draws=CHAIN.draws,
        )
        chained = Chained(
            groups,
            seed=0,
            purpose="benchmark",
            max_feedback_tokens=MAX_FEEDBACK_TOKENS,
            stop_at_success=True,
        )
        return play_unit(chained, player).rollouts

    def forget(self, kind: str) -> None:
        """Drops an engine's caches, so that no repeat finds the last one's."""
        engine = self.players[kind].engine
        engine.load_weights(dict(policy_in(self.folder).model.state_dict()), engine.policy_digest)


def policy_in(folder: Path) -> Any:
    """Returns the policy in a folder, with a model of its own: an engine keeps the one it gets."""
    from pipeline.models.policy import load_policy

    return load_policy(folder)


def configured(config: Config, kind: str) -> Config:
    """Returns the configuration with another engine."""
    shared = config.engine.model_dump(include={"max_live", "dtype"})
    return Config.model_validate(config.model_dump() | {"engine": {"kind": kind, **shared}})


@contextmanager
def prepared(asked: Asked) -> Iterator[Bench]:
    """Yields policy, tasks and players of all engines, in a temporary folder."""
    from pipeline.artifacts.artifact import Artifact
    from pipeline.tables import tasks_from

    # Of the replicas, which share the cores with this process.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with tempfile.TemporaryDirectory(prefix="vdapo-engines-") as name:
        settings = [*SETTINGS, *asked.settings]
        make_stages(CONFIG, "engines", ("tasks", "sft"), settings, Path(name))
        run = Path(name) / "engines"
        tasks = tasks_from(Artifact.open(run, "tasks").table("tasks"))
        train = [task for task in tasks if task.split == "train"]
        config = load_config(Config, ROOT / CONFIG, settings)
        folder = run / "sft" / "policy"
        players: dict[str, Player] = {}
        try:
            for kind in ("scripted", "transformers", "vllm"):
                policy = policy_in(folder)
                players[kind] = make_player(configured(config, kind), policy)
            yield Bench(config, folder, train[: asked.options.tasks], players)
        finally:
            for player in players.values():
                player.engine.close()


def ask_all(engine: Any, requests: Iterable[GenerationRequest]) -> dict[str, Generation]:
    """Returns the answer to each request."""
    engine.submit(list(requests))
    found: dict[str, Generation] = {}
    while answered := engine.collect():
        found |= {generation.request_id: generation for generation in answered}
    return found
