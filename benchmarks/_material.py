"""What the benchmarks of critics share: a run whose stages are made once, critics fitted on its samples."""

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._run import ROOT, Asked, make_stages
from critics.labels.checks import check_labels
from critics.labels.named_targets import RULES, retarget
from critics.labels.samples import samples_of
from critics.labels.soft_targets import Granularity, build_labels
from critics.labels.splits import Part, parts_of
from pipeline.artifacts.artifact import Artifact
from pipeline.config import load_config
from pipeline.ids import digest
from pipeline.tables import rollouts_from, tasks_from
from pipeline.types import Label, Rollout, StateRef, Task
from stages.critic import STAGE as CRITIC_STAGE
from stages.labels import STAGE as LABELS_STAGE
from stages.settings import Config

CODE_VERSION = 3
"""Of critics' benchmarks and measures: raised with every change of what a kept row says."""
CONFIG = "configs/phone-l3-tiny.yaml"
STAGES = ("tasks", "sft", "rollouts", "labels", "critic", "critic_report")
QUICK = (
    "engine.max_live=64",
    "training={threads: 1, micro_batch_tokens: 4096}",
    "tasks={num_companies: 16, num_train: 32, num_held_out: 8, level_shares: {1: 1.0}}",
    "sft={model: {hidden_size: 64, num_layers: 2, num_kv_heads: 1, "
    "intermediate_size: 96}, num_demonstrations: 192, "
    "shares: {oracle: 0.3, over_collector: 0.5, noisy_adaptive: 0.2}, num_updates: 100, "
    "batch_rows: 16, learning_rate: 0.01}",
    "sampling.max_response_tokens=256",
    "labels={target: soft, max_states: 48, num_continuations: 2}",
    "critic={fit_share: 0.5, validate_share: 0.25, fit_continuations: true, head_updates: 2, "
    "head_learning_rate: 0.001, learning_rate: 0.0005, max_epochs: 2, batch_states: 64, "
    "evaluations_per_epoch: 1}",
    "critic_report={tasks_per_split: 8, draws: 2, num_continuations: 2, guided: false, "
    "sibling_sets: 0, probe_rollouts: 0}",
)
"""Settings of --quick: a 60-thousand-parameter policy that shows nothing but that all of this works."""


class Material:
    """What all variants of a seed share: rollouts, their continuations, the audit, the stage's critic."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        opened = {name: Artifact.open(folder, name) for name in STAGES}
        self.tasks: dict[str, Task] = {t.task_id: t for t in tasks_from(opened["tasks"].table("tasks"))}

        def rollouts_of(stage: str) -> list[Rollout]:
            return rollouts_from(opened[stage].table("rollouts"), opened[stage].table("steps"))

        self.rollouts, self.sampled = rollouts_of("rollouts"), rollouts_of("labels")
        self.samples = samples_of(self.sampled, {r.rollout_id for r in self.rollouts})
        self.values: dict[str, list[float]] = defaultdict(list)
        for row in opened["critic_report"].table("values").to_pylist():  # by rollout, steps in order
            self.values[row["rollout_id"]].append(row["value"])
        self.made = opened["critic"].report
        self.audited = rollouts_of("critic_report")
        # Not the report's own digest: another page about the same audit costs nobody a fit.
        audited = [
            (r.seed, r.draw, r.start_step_index, len(r.response_token_ids), r.reward) for r in self.audited
        ]
        self.digests = [opened[name].content_digest for name in STAGES[:-1]] + [
            digest("audit", sorted(audited, key=repr))
        ]
        report, self.gate = (
            json.loads((folder / "critic_report" / f"{name}.json").read_text("utf-8"))
            for name in ("report", "gate")
        )
        self.policy_digest: str = report["policy_digest"]

    def key(self, *asked: Any) -> str:
        """Returns what a figure follows from: what is asked, settings, all that was sampled, and code."""
        code = [CODE_VERSION, LABELS_STAGE.code_version, CRITIC_STAGE.code_version]
        settings = [getattr(self.config, name).model_dump(mode="json") for name in ("labels", "critic")]
        return digest(*asked, settings, self.digests, code)

    def part_of(self, fit_share: float | None = None) -> dict[str, Part]:
        """Returns rollout_id -> part, as the critic stage has it, or with another share to fit to.

        Then the same clusters validate: theirs are continued, and what is compared is one thing.
        """
        shares = self.config.critic
        own = self._parts(shares.fit_share)
        if fit_share is None or fit_share == shares.fit_share:
            return own
        beyond = shares.validate_share if fit_share > shares.fit_share else 0.0
        fitted = self._parts(fit_share + beyond)
        validating: dict[str, Part] = {name: "validate" for name, part in own.items() if part == "validate"}
        return {name: "fit" if part == "fit" else "calibrate" for name, part in fitted.items()} | validating

    def _parts(self, fit_share: float) -> dict[str, Part]:
        return parts_of(
            self.rollouts,
            self.tasks,
            fit_share=fit_share,
            validate_share=self.config.critic.validate_share,
            seed=self.config.run.seed,
        )

    def share(self, share: float) -> dict[StateRef, list[Rollout]]:
        """Returns the continuations of states, in hash order, until a share of all their tokens is used."""
        seed = {r.rollout_id: r.seed for r in self.rollouts}
        order = sorted(self.samples, key=lambda s: digest("share", seed[s.rollout_id], s.step_index))
        cost = {s: sum(r.num_trainable_tokens for r in self.samples[s]) for s in order}
        left, kept = share * sum(cost.values()), {}
        for state in order:
            left -= cost[state]
            if left < 0 and share < 1:
                break
            kept[state] = self.samples[state]
        return kept

    def labels(self, variant: str, granularity: Granularity | None = None) -> tuple[list[Label], str, int]:
        """Returns a variant's labels, checked, their rule, and tokens of the continuations that its fit uses.

        Those of validating companies decide when any fit ends; a rule uses no others.
        """
        name, _, percent = variant.partition("@")
        samples = self.share(int(percent or 100) / 100)
        settings = self.config.labels
        labels, _ = build_labels(
            self.rollouts,
            samples,
            kappa=float(name.removeprefix("kappa")) if name.startswith("kappa") else settings.kappa,
            label_policy_digest=self.policy_digest,
            seed=self.config.run.seed,
            granularity=granularity or settings.granularity,
        )
        rule = name if name in RULES else "soft"
        if rule != "soft":
            labels = retarget(labels, self.rollouts, rule, policy=self.policy_digest)
        check_labels(labels, self.rollouts, list(self.tasks.values()), label_policy_digest=self.policy_digest)
        part_of = self.part_of()
        used = [
            members
            for state, members in samples.items()
            if rule == "soft" or part_of[state.rollout_id] == "validate"
        ]
        return labels, rule, sum(r.num_trainable_tokens for members in used for r in members)


def material_of(
    asked: Asked, config: str = CONFIG, run: str = "quality", settings: Sequence[str] = ()
) -> Material:
    """Returns what the stages up to critic_report made of a seed, in `<run>-seed<k>`; made if need be."""
    settings = [*settings, *asked.settings]
    run = f"{run}-seed{asked.seed}"
    make_stages(config, run, STAGES, settings, asked.data_dir)
    return Material(load_config(Config, ROOT / config, settings), asked.data_dir / run)


def linked(data_dir: Path, run: str, name: str, stages: Sequence[str]) -> Path:
    """Returns the folder of another run that shares these stages."""
    folder = data_dir / f"{run}-{name}"
    folder.mkdir(exist_ok=True)
    for stage in stages:
        if not os.path.lexists(folder / stage):
            os.symlink(data_dir / run / stage, folder / stage, target_is_directory=True)
    return folder
