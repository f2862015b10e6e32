"""What the stored phase learns from: rollouts of earlier stages, guided successes on the bare prompt."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from env.catalog import offer_of
from env.chat.coder import Coder
from env.play.stripping import Vocabulary, is_success, untold
from pipeline.credit.updates import ValuesOf
from pipeline.errors import ArtifactError, ExitCode
from pipeline.runner import Start
from pipeline.training.stored.siblings import sibling_sets
from pipeline.training.stored.stopping import held_out_clusters
from pipeline.types import Rollout, Task
from stages.settings import Config
from stages.wiring.inputs import rollouts_of, tasks_by_id
from stages.wiring.solutions import refuse_recorded
from stages.wiring.stored_credit import credited_rollouts


@dataclass(frozen=True, slots=True)
class Material:
    """Stored rollouts that an objective may learn from."""

    bare: list[Rollout]  # graded, failures among them
    guided: list[Rollout]  # successes, as sampled; none for an objective that does not strip
    parents: dict[str, Rollout]  # whole rollouts by id
    tasks: dict[str, Task]  # by id
    left_out: Counter[str]  # why others are not here


@dataclass(frozen=True, slots=True)
class Examples:
    """What is trained on and looked at, of the bare prompt; advantages are [T_i], zeros where nobody asks."""

    train: list[Rollout]
    advantages: list[np.ndarray]
    held_out: list[Rollout]  # of other clusters; successes alone unless the loss judges
    held_out_advantages: list[np.ndarray]
    counts: dict[str, Any]  # rows by what became of them, for the report


def material_of(start: Start[Config]) -> Material:
    """Returns the rollouts of the stage's inputs; raises ArtifactError if they cannot teach anything."""
    objective, tasks = start.config.stored.objective, tasks_by_id(start)
    fresh = whole = rollouts_of(start.inputs["rollouts"])
    if "replay" in start.inputs:
        whole = rollouts_of(start.inputs["replay"])[-start.config.replay.newest :]
    continued = rollouts_of(start.inputs["labels"]) if "labels" in start.inputs else []
    bare, guided, left_out = list[Rollout](), list[Rollout](), Counter[str]()
    for r in (*whole, *continued):
        if r.reward is None or not r.steps:
            left_out["ungraded"] += 1
        elif not r.guided:
            bare.append(r)
        elif not objective.strips:
            left_out["of_a_guided_prompt"] += 1
        elif not is_success(r):
            left_out["guided_failure"] += 1
        else:
            guided.append(r)
    if not (objective.strips or objective.estimates):
        refuse_recorded(
            bare,
            f"stored.objective.kind = {objective.kind}",
            "takes ratios to stored log-probabilities",
            "another kind, or rollouts that the starting policy plays",
        )
    won = (tasks[r.task_id].cluster for r in (*bare, *guided) if is_success(r))
    held_out_clusters(won, start.seed)  # refuses too few of them
    if objective.kind == "direct_advantage" and not sibling_sets(bare):
        raise ArtifactError(
            "stored.objective.kind = direct_advantage compares next steps of a state; there is no bare state "
            "with two. Next: labels.num_continuations >= 2, labels.guided_share < 1, or another kind",
            code=ExitCode.QUALITY,
        )
    return Material(bare, guided, {r.rollout_id: r for r in (*whole, *fresh)}, tasks, left_out)


def stripped_guided(config: Config, material: Material, tokenizer: Any) -> tuple[list[Rollout], Counter[str]]:
    """Returns guided successes on the bare prompt, and what only feedback told those that are left out.

    The counter says of each such word how many rollouts say it.
    """
    prompt, offer = config.prompt, offer_of(config.tasks.environment)
    style = config.style(tokenizer)
    coder = Coder(tokenizer, style.stop_token)
    vocabulary = Vocabulary({task.task_id: task.cluster for task in material.tasks.values()})
    vocabulary.hear([*material.bare, *material.guided])
    triples = []
    for r in material.guided:
        begun = r if r.kind == "whole" else material.parents[r.parent_rollout_ids[0]]
        task = material.tasks[r.task_id]
        with closing(offer.make_env(config.tasks, prompt.verbosity)) as env:
            messages = env.reset(task, begun.seed).messages
            triples.append((r, begun.prompt_token_ids, coder.prompt(style, messages, env.spec.tools)))
    return untold(triples, vocabulary.shared, tokenizer.decode)


def examples_of(start: Start[Config], material: Material, values_of: ValuesOf, tokenizer: Any) -> Examples:
    """Returns what the configured objective trains on, by the critic's values where it asks for them.

    Raises ArtifactError, code QUALITY, if nothing is left to train on or to look at.
    """
    objective, tasks, left_out = start.config.stored.objective, material.tasks, Counter(material.left_out)
    guided, told = stripped_guided(start.config, material, tokenizer)
    left_out["told_by_feedback"] = len(material.guided) - len(guided)
    everything = [*material.bare, *guided]
    won = [r for r in everything if is_success(r)]
    held = held_out_clusters((tasks[r.task_id].cluster for r in won), start.seed)
    credited = credited_rollouts(objective, everything, tasks, values_of)
    left_out.update(credited.left_out)
    pairs = list(zip(credited.rollouts, credited.advantages, strict=True))
    train = [pair for pair in pairs if tasks[pair[0].task_id].cluster not in held]
    held_out = [pair for pair in pairs if tasks[pair[0].task_id].cluster in held]
    if not objective.judged_by_loss:
        held_out = [pair for pair in held_out if is_success(pair[0])]
        left_out["failure_of_held_out_clusters"] = len(pairs) - len(train) - len(held_out)
    if not (train and held_out):
        raise ArtifactError(
            f"{len(train)} rollouts are left to train on, {len(held_out)} of held-out clusters to look at; "
            f"left out: {dict(left_out)}. Next: more rollouts, or another stored.objective.kind",
            code=ExitCode.QUALITY,
        )
    bare = {r.rollout_id for r in material.bare}
    counts = {
        "bare": sum(r.rollout_id in bare for r, _ in train),
        "recorded": sum(not r.has_logprobs for r, _ in train),
        "guided_stripped": sum(r.rollout_id not in bare for r, _ in train),
        "held_out": len(held_out),
        "left_out": {reason: n for reason, n in sorted(left_out.items()) if n},
        "told_words": dict(told.most_common(10)),
        "compared": credited.compared,
    }
    return Examples(*_columns(train), *_columns(held_out), counts)


def _columns(pairs: Sequence[tuple[Rollout, np.ndarray]]) -> tuple[list[Rollout], list[np.ndarray]]:
    return [rollout for rollout, _ in pairs], [advantages for _, advantages in pairs]
