"""How good critics get, and how that moves with label budget, kind of target and size of the trunk.

    python benchmarks/critic_quality.py --config configs/phone-l3-tiny.yaml          # seeds 0, 1, 2
    python benchmarks/critic_quality.py --config configs/demo.yaml --seeds 0 --variants soft soft@25

For each seed the stages up to critic_report are made once, in `<data dir>/quality-seed<k>`. Every variant
then fits a critic in this process on the same rollouts and continuations (or a share of them) and is judged
on the same audit: labels and audit are sampled once. A variant's figures are kept in the seed's folder, so
the same command goes on where it was stopped. First errors are held against the solver's first fatal step
and against the verifiers' events.

Variants: `soft` (the method), `soft@25`, `soft@50` (share of the continuations' tokens), `kappa0`, one for
each target rule, and `trunk:<name>` for the trunks named by --trunk NAME=section.key=value[,...]: the sft
stage with these settings, in a run of its own.
Results: benchmarks/results/critic_quality.json and .svg. Exits 1 if a criterion fails.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measuring import RESULTS, ROOT, conclude
from benchmarks.demo_seeds import machine_facts
from critics.anchors import StateRef
from critics.audit import AuditData
from critics.bootstrap import Bootstrap
from critics.calibration import fit_calibrator
from critics.fitting import fit, held_out
from critics.located import first_error
from critics.quality import measure
from critics.rows import critic_rows
from critics.rules import BOOTSTRAPPED, RULES, retarget
from critics.splits import split_clusters
from critics.targets import build_labels, check_labels
from pipeline.artifacts import Artifact
from pipeline.config import load_config
from pipeline.ids import digest
from pipeline.statistics import Interval, interval_dict
from pipeline.tables import rollouts_from, tasks_from
from pipeline.types import Label, Rollout, Task
from stages.continuing import is_whole
from stages.settings import Config

STAGES = ("tasks", "sft", "rollouts", "labels", "critic", "critic_report")
VARIANTS = ("soft", "soft@25", "soft@50", "kappa0", *RULES)
SHOWN = ("ev", "ev_within", "rho_a", "ece_excess", "skill_over_task_rate")
AIMS = {"ev": 0.7, "ev_within": 0.5, "rho_a": 0.6}
MAX_EXCESS = 0.02


def of_soft(results: Any) -> list[dict[str, Any]]:
    """Returns the rows of the method itself, one per seed."""
    rows = [row for row in results["rows"] if row["variant"] == "soft"]
    if not rows:
        raise KeyError("soft")
    return rows


def above(results: Any, name: str, threshold: float, bound: str) -> bool:
    """Returns whether a figure of the method, or its lower bound, is above a threshold at every seed."""
    numbers = [row[name][bound] for row in of_soft(results)]
    return all(number is not None and number > threshold for number in numbers)


CRITERIA: dict[str, Any] = {
    "explained variance within rollouts above 0, interval": lambda r: above(r, "ev_within", 0, "low"),
    "advantage correlation above 0, interval": lambda r: above(r, "rho_a", 0, "low"),
    **{
        f"aim: {name} >= {aim}": lambda r, n=name, a=aim: above(r, n, a, "value")
        for name, aim in AIMS.items()
    },
    "aim: calibration error within .02 of its floor": lambda r: all(
        row["ece_excess"]["value"] <= MAX_EXCESS for row in of_soft(r)
    ),
}


class Material:
    """What all variants of a seed share: rollouts, their continuations, the audit.

    Attributes:
        config: of the run.
        folder: of the run.
        tasks: by id.
        rollouts: of the rollouts stage.
        samples: continuations by state.
        audited: everything that the audit sampled.
    """

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        opened = {name: Artifact.open(folder, name) for name in STAGES}
        self.tasks: dict[str, Task] = {t.task_id: t for t in tasks_from(opened["tasks"].table("tasks"))}

        def rollouts_of(stage: str) -> list[Rollout]:
            return rollouts_from(opened[stage].table("rollouts"), opened[stage].table("steps"))

        self.rollouts = rollouts_of("rollouts")
        self.samples: dict[StateRef, list[Rollout]] = defaultdict(list)
        for r in rollouts_of("labels"):
            self.samples[StateRef(r.parent_rollout_ids[0], r.start_step_index, r.context)].append(r)
        self.audited = rollouts_of("critic_report")
        report = json.loads((folder / "critic_report" / "report.json").read_text("utf-8"))
        self.policy_digest: str = report["policy_digest"]

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

    def labels(self, variant: str) -> tuple[list[Label], str, int]:
        """Returns a variant's labels, checked, their rule, and the tokens that their continuations took."""
        name, _, percent = variant.partition("@")
        samples = self.share(int(percent or 100) / 100)
        settings = self.config.labels
        labels, _ = build_labels(
            self.rollouts,
            samples,
            kappa=0.0 if name == "kappa0" else settings.kappa,
            label_policy_digest=self.policy_digest,
            seed=self.config.run.seed,
            granularity=settings.granularity,
        )
        rule = name if name in RULES else "soft"
        if rule != "soft":
            labels = retarget(labels, self.rollouts, rule, policy=self.policy_digest)
        check_labels(labels, self.rollouts, list(self.tasks.values()), label_policy_digest=self.policy_digest)
        tokens = sum(r.num_trainable_tokens for members in samples.values() for r in members)
        return labels, rule, tokens


def fitted(
    material: Material, labels: list[Label], rule: str, trunk: Path
) -> tuple[Any, Any, dict[str, Any]]:
    """Returns a trainer with the best weights, the calibrator, and how the fit went.

    The clusters are split as the critic stage splits them.
    """
    import torch

    from critics.model import make_critic
    from stages.backends import make_trainer

    config, settings = material.config, material.config.critic
    cluster = {r.rollout_id: material.tasks[r.task_id].cluster for r in material.rollouts}
    labelled = {label.rollout_id for label in labels}
    part_of = split_clusters(
        {cluster[name] for name in labelled},
        fit_share=settings.fit_share,
        validate_share=settings.validate_share,
        seed=config.run.seed,
    )

    def part(name: str) -> tuple[list[Rollout], list[Label]]:
        own = [label for label in labels if part_of[cluster[label.rollout_id]] == name]
        ids = {label.rollout_id for label in own}
        return [r for r in material.rollouts if r.rollout_id in ids], own

    rollouts, own = part("fit")
    own = [label for label in own if rule == "soft" or label.label_source == rule]
    rows = critic_rows(rollouts, own)
    bootstrap = None
    if rule in BOOTSTRAPPED:
        ids = {label.rollout_id for label in own}
        lam = 0.0 if rule == "td" else config.labels.td_lam
        bootstrap = Bootstrap.of([r for r in rollouts if r.rollout_id in ids], lam)
    model = make_critic(trunk)
    trainer: Any = make_trainer(
        config, model, head="critic", learning_rate=lambda _: 0.0, weight_decay=settings.weight_decay
    )
    stored: dict[int, dict[str, Any]] = {}

    def keep(number: int) -> None:
        stored[number] = {name: weight.clone() for name, weight in trainer.weights().items()}

    result = fit(
        trainer,
        rows,
        held_out(*part("validate")),
        settings,
        seed=config.run.seed,
        keep=keep,
        drop=lambda number: stored.pop(number, None),
        bootstrap=bootstrap,
    )
    with torch.no_grad():
        model.load_state_dict(stored[result.best])
    calibration = held_out(*part("calibrate"))
    calibrator = fit_calibrator(
        calibration.logits(trainer),
        *calibration.counts_sharing_outcomes(),
        base_logit=result.base_logit,
        step_index=calibration.step_index,
        guided=calibration.context == "guided",
    )
    facts = {"converged": result.converged, "updates": result.num_updates, "fitted_rows": len(rows)}
    return trainer, calibrator, facts


def judged(material: Material, trainer: Any, calibrator: Any) -> dict[str, Any]:
    """Returns the figures of a critic on the seed's audit, bare states."""
    from critics.contract import read_value_logits
    from critics.rows import value_positions
    from pipeline.training import TrainingRow
    from stages.critic_report import audit_data

    config = material.config
    whole = [r for r in material.audited if is_whole(r) and r.reward is not None and r.steps and not r.guided]
    rows = [
        TrainingRow(np.array((*r.prompt_token_ids, *r.response_token_ids), dtype=np.int32)) for r in whole
    ]
    z = read_value_logits(
        trainer.model, rows, [value_positions(r) for r in whole], config.training.micro_batch_tokens
    )
    values = {
        r.rollout_id: calibrator(logits, step_index=np.array([step.step_index for step in r.steps]))
        for r, logits in zip(whole, z, strict=True)
    }
    bare = [r for r in material.audited if not r.guided]
    start: Any = SimpleNamespace(config=config)
    audit = audit_data(start, bare, values, list(material.tasks.values()))
    found = measure(audit, num_resamples=config.critic_report.bootstrap, seed=config.run.seed)
    located = {"events": first_error(audit.rollouts), "solver": first_error(with_fatal_steps(audit))}
    return {name: interval_dict(found[name]) for name in (*SHOWN, "ece", "rmse", "bias")} | {
        f"first_error_{who}": {
            name: interval_dict(x) if isinstance(x, Interval) else x for name, x in of.items()
        }
        for who, of in located.items()
    }


def with_fatal_steps(audit: AuditData) -> list[Any]:
    """Returns the audited rollouts with one `wrong` step at most: the solver's first fatal one."""
    optimal: dict[str, dict[int, float]] = defaultdict(dict)
    for name, step, value in zip(audit.rollout_id, audit.step_index, audit.v_star, strict=True):
        optimal[str(name)][int(step)] = float(value)
    marked = []
    for rollout in audit.rollouts:
        known = optimal[rollout.rollout_id]
        T = len(rollout.values)
        if any(i not in known or math.isnan(known[i]) for i in range(T)):
            continue
        along = [*(known[i] for i in range(T)), rollout.reward or 0.0]
        fatal = next((i for i in range(T) if along[i + 1] < along[i]), None)
        marked.append(replace(rollout, statuses=tuple("wrong" if i == fatal else "ok" for i in range(T))))
    return marked


def make_stages(
    config: str, run: str, stages: Sequence[str], settings: Sequence[str], data_dir: Path
) -> None:
    """Makes or finishes stages of a run by their commands.

    Raises:
        SystemExit: one failed; what it made stays.
    """
    for stage in stages:
        command = [sys.executable, "-m", f"stages.{stage}", config, "--run", run, *settings]
        command.append(f"run.data_dir={json.dumps(str(data_dir))}")
        if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
            raise SystemExit(f"{run}: {stage} ended with {code}. The same command goes on")


def rows_of_seed(options: argparse.Namespace, seed: int, data_dir: Path) -> list[dict[str, Any]]:
    """Returns a row per variant; those that a former call finished are read."""
    run = f"quality-seed{seed}"
    settings = [*options.settings, f"run.seed={seed}"]
    make_stages(options.config, run, STAGES, settings, data_dir)
    overrides = [*settings, f"run.data_dir={json.dumps(str(data_dir))}"]
    config = load_config(Config, Path(options.config), overrides)
    material = Material(config, data_dir / run)
    trunks = dict(text.split("=", 1) for text in options.trunk)
    rows = []
    for variant in (*options.variants, *(f"trunk:{name}" for name in trunks)):
        kept = data_dir / run / "quality" / f"{variant.replace(':', '-')}.json"
        key = digest(variant, trunks, config.model_dump(mode="json"), material.policy_digest)
        if kept.is_file() and (row := json.loads(kept.read_text("utf-8")))["key"] == key:
            rows.append(row)
            continue
        trunk = data_dir / run / "sft" / "policy"
        if variant.startswith("trunk:"):
            name = variant.removeprefix("trunk:")
            own = f"{run}-trunk-{name}"
            make_stages(
                options.config, own, ("tasks", "sft"), [*settings, *trunks[name].split(",")], data_dir
            )
            trunk = data_dir / own / "sft" / "policy"
            check_same_tokenizer(trunk, data_dir / run / "sft" / "policy")
        labels, rule, tokens = material.labels("soft" if variant.startswith("trunk:") else variant)
        trainer, calibrator, facts = fitted(material, labels, rule, trunk)
        row = {"key": key, "seed": seed, "variant": variant, "label_tokens": tokens} | facts
        row |= judged(material, trainer, calibrator)
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(row) + "\n", encoding="utf-8")
        rows.append(row)
        print_row(row)
    return rows


def check_same_tokenizer(one: Path, other: Path) -> None:
    """Raises SystemExit unless two policies read the same token ids."""
    from pipeline.models import load_tokenizer, tokenizer_digest

    if tokenizer_digest(load_tokenizer(one)) != tokenizer_digest(load_tokenizer(other)):
        raise SystemExit(
            f"{one} has another tokenizer than {other}; change only sft.model's sizes, not its vocabulary"
        )


def cell(numbers: dict[str, float | None]) -> str:
    """Returns a figure with its interval as text."""
    value, low, high = ("-" if numbers[k] is None else f"{numbers[k]:.2f}" for k in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def print_row(row: dict[str, Any]) -> None:
    """Prints a line of the table."""
    cells = "  ".join(f"{name} {cell(row[name])}" for name in SHOWN)
    solver = row["first_error_solver"]
    print(
        f"seed {row['seed']} {row['variant']:<14} {row['label_tokens']:>9,} tokens  {cells}  first error "
        f"against the solver {cell(solver['exact'])}, F1 {cell(solver['f1']).split()[0]}",
        flush=True,
    )


def picture(rows: Sequence[dict[str, Any]]) -> str:
    """Returns EV within rollouts of every variant and seed, with intervals."""
    from pipeline.report.plots import points

    ordered = sorted(
        rows, key=lambda row: list(dict.fromkeys(r["variant"] for r in rows)).index(row["variant"])
    )
    names = [f"{row['variant']}, seed {row['seed']}" for row in ordered]

    def numbers(part: str) -> list[float]:
        return [math.nan if row["ev_within"][part] is None else row["ev_within"][part] for row in ordered]

    return points(
        "quality",
        names,
        numbers("value"),
        numbers("low"),
        numbers("high"),
        x_label="EV within rollouts, 95 %",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Makes every seed and variant, prints the table, writes the results; returns 1 if a criterion fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="configs/phone-l3-tiny.yaml")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    parser.add_argument("--trunk", nargs="+", default=[], metavar="NAME=section.key=value,...")
    parser.add_argument("--set", nargs="+", default=[], metavar="section.key=value", dest="settings")
    parser.add_argument("--data-dir", type=Path, default=ROOT / "data")
    parser.add_argument("--results", type=Path, default=RESULTS / "critic_quality.json")
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    results: dict[str, Any] = {}
    for seed in options.seeds:
        rows += rows_of_seed(options, seed, options.data_dir.resolve())
        results = {
            "machine": machine_facts(),
            "config": options.config,
            "settings": options.settings,
            "trunks": options.trunk,
            "rows": rows,
        }
        # After every seed, so that a stop loses no finished one.
        options.results.parent.mkdir(parents=True, exist_ok=True)
        options.results.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        options.results.with_suffix(".svg").write_text(picture(rows) + "\n", encoding="utf-8")
    for row in rows:
        print_row(row)
    return conclude(options.results, results, CRITERIA)


if __name__ == "__main__":
    sys.exit(main())
