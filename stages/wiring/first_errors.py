"""`vdapo errors`: how often a run's verifier and critic name the first wrong step of labelled solutions."""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from critics.audit.first_error import first_wrong, located, predicted_error
from env.catalog import offer_of
from env.play.recorded import judged_steps, recorded_rollout
from env.play.requests import EpisodeRequest
from env.solutions import Solution, Solutions, read_labelled
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.manifest import read_manifest
from pipeline.config import load_config
from pipeline.errors import ArtifactError, ConfigError
from pipeline.rows import BadRowError
from pipeline.statistics import Interval, interval_dict, interval_words
from pipeline.tables import tasks_from
from stages.settings import Config

Named = tuple[list[Solution], list[int | None]]
"""Solutions, and the first step of each that is taken for wrong."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("config", type=Path, help="the YAML of the run, which has made its tasks")
    parser.add_argument(
        "source", help="rows with task, steps, label (first wrong step from 0, or -1), correct"
    )
    parser.add_argument("--split", default="train", help="of a data set on the hub, or a folder")
    parser.add_argument("--run", metavar="NAME", help="folder under data_dir (run.name)")
    parser.add_argument(
        "--column", action="append", default=[], metavar="FIELD=COLUMN", help="where a field is"
    )
    parser.add_argument("--json", action="store_true", help="an object")


def run(options: argparse.Namespace) -> int:
    """Prints the measures of the verifier, if it speaks of steps, and of the critic, if there is one."""
    config = load_config(Config, options.config)
    run_dir = Path(config.run.data_dir) / (options.run or config.run.name)
    columns = dict(column.partition("=")[::2] for column in options.column)
    source = Solutions(source=options.source, split=options.split, columns=columns)
    tasks = tasks_from(Artifact.open(run_dir, "tasks").table("tasks"))
    solutions, bad = read_labelled(source, tasks)
    left_out, found = Counter(row.kind for row in bad), dict[str, Named]()
    if (named := by_verifier(config, solutions, left_out)) is not None:
        found["verifier"] = named
    if read_manifest(run_dir / "critic") is not None:
        found["critic"] = by_critic(config, run_dir, solutions, left_out)
    if not found:
        raise ArtifactError(
            f"the environment {config.tasks.environment} says nothing of these steps, and {run_dir} has no "
            "critic: nobody names a wrong step. Next: make critic, with the same CONFIG and RUN"
        )
    measures = {name: measured(*named, config.run.seed) for name, named in found.items()}
    if options.json:
        print(
            json.dumps({"left_out": dict(left_out), **{n: _plain(m) for n, m in measures.items()}}, indent=1)
        )
        return 0
    for name, of in measures.items():
        words = [f"{key} {interval_words(of[key], 3)}" for key in ("f1", "exact", "within_one", "none")]
        numbers = f"{of['num_wrong']} solutions with an error, {of['num_right']} without; "
        numbers += f"{of['num_of_training_tasks']} of training tasks"
        print(f"{name}: {', '.join(words)} ({numbers})")
    for kind, number in sorted(left_out.items()):
        print(f"{number} left out: {kind}")
    return 0


def measured(solutions: Sequence[Solution], named: Sequence[int | None], seed: int) -> dict[str, Any]:
    """Returns the measures of `located`, with intervals over the clusters of tasks.

    How many are of training tasks is told as well: a critic may have been fitted on other solutions of these.
    """
    if not solutions:
        raise ConfigError("no labelled solution could be judged; see the rows that are left out")
    clusters = [solution.task.cluster for solution in solutions]
    found = located([solution.first_wrong for solution in solutions], named, clusters, seed=seed)
    return {**found, "num_of_training_tasks": sum(s.task.split == "train" for s in solutions)}


def by_verifier(config: Config, solutions: Sequence[Solution], left_out: Counter[str]) -> Named | None:
    """Returns the first step of each solution that the environment calls wrong; None if it speaks of none."""
    offer, prompt = offer_of(config.tasks.environment), config.prompt
    style = config.style()
    judged, named, words = list[Solution](), list[int | None](), set[str]()
    for solution in solutions:
        with closing(offer.make_env(config.tasks, prompt.verbosity)) as env:
            try:
                statuses = judged_steps(solution, env, style)
            except BadRowError as error:
                left_out[f"verifier: {error.kind}"] += 1
                continue
        judged.append(solution)
        named.append(first_wrong(statuses))
        words.update(statuses)
    return (judged, named) if words - {"unknown"} else None


def by_critic(config: Config, run_dir: Path, solutions: Sequence[Solution], left_out: Counter[str]) -> Named:
    """Returns the first step of each solution that lowers the frozen critic's value by much.

    After the last step the value is the recorded reward, or what the environment's grader says.
    """
    from env.chat.coder import Coder  # with torch, which a verifier alone does not need
    from pipeline.models.policy import load_policy
    from stages.wiring.build import load_critic
    from stages.wiring.player import silent_player

    policy = load_policy(Artifact.open(run_dir, "sft").path("policy"))
    player = silent_player(config, policy, "labelled")
    coder, read, rollouts = Coder(policy.tokenizer, player.style.stop_token), list[Solution](), []
    for number, solution in enumerate(solutions):
        request = EpisodeRequest(str(number), solution.task, "", 0, 0, 0, 0, kind="recorded")
        try:
            rollout = recorded_rollout(solution, request, player, coder)
            if rollout.reward is None:
                raise BadRowError(rollout.env_status, "it could not be graded")
        except BadRowError as error:
            left_out[f"critic: {error.kind}"] += 1
            continue
        read.append(solution)
        rollouts.append(rollout)
    critic = load_critic(config, Artifact.open(run_dir, "critic").path("critic"))
    values = critic.values(rollouts)
    critic.close()
    pairs = zip(values, rollouts, strict=True)
    return read, [predicted_error(V.tolist(), float(r.reward or 0.0)) for V, r in pairs]


def _plain(measures: dict[str, Any]) -> dict[str, Any]:
    return {name: interval_dict(of) if isinstance(of, Interval) else of for name, of in measures.items()}
