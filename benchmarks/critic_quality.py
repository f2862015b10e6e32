"""How good critics get, and how that moves with label budget, kind of target and size of the trunk.

    python benchmarks/critic_quality.py                    # configs/phone-l3-tiny.yaml, seeds 0, 1, 2
    python benchmarks/critic_quality.py --quick            # minutes: tiny sizes, results beside its runs

For each seed the stages up to critic_report are made once, in `<data dir>/quality-seed<k>`. `soft` is the
critic that they made; every other variant fits one in this process on the same rollouts and continuations (or
a share of them), and all are judged on the same audit. Nothing is sampled but by the stages. Stages resume by
themselves and a variant's figures are kept in the seed's folder, so the same command goes on where it was
stopped. First errors are held against the solver's first fatal step and against the verifiers' events.

Variants: `soft` (the method), `soft@25`, `soft@50` (share of the continuations' tokens), `kappa<k>`,
`labels-alone` (without critic.fit_continuations, and so are the rules), one for each target rule, and
`trunk:layers<k>`, the policy's first k layers as the trunk. Trunks of another make are named by --trunk
NAME=FOLDER, a model with the policy's tokenizer, or NAME=section.key=value[,...]: the sft stage with these
settings on the seed's tasks, in a run of its own; --variants then says `trunk:NAME`.

Two CPU cores take hours: of a seed the stages alone some three quarters of an hour, and each of ten more fits
several minutes, as the critic stage does. A trunk that sft makes takes as long as sft.
Results: benchmarks/results/critic_quality.json, .md (the table) and .svg; with fewer seeds or variants beside
the runs. Exits 1 if a criterion fails.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
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
from critics.fitting import calibrate, fit, held_out, outcome_states
from critics.located import first_error
from critics.quality import measure
from critics.rows import critic_rows
from critics.rules import BOOTSTRAPPED, RULES, retarget
from critics.splits import parts_of
from critics.targets import build_labels, check_labels, continued_labels
from pipeline.artifacts import Artifact
from pipeline.config import load_config
from pipeline.disk import write_durably
from pipeline.ids import digest
from pipeline.statistics import Interval, interval_dict
from pipeline.tables import rollouts_from, tasks_from
from pipeline.types import Label, Rollout, Task
from stages.continuing import gone_on, is_whole, samples_of
from stages.critic import STAGE as CRITIC_STAGE
from stages.critic_report import STAGE as REPORT_STAGE
from stages.labels import STAGE as LABELS_STAGE
from stages.settings import Config
from stages.sibling_sets import ranked_sets

STAGES = ("tasks", "sft", "rollouts", "labels", "critic", "critic_report")
VARIANTS = (
    *("soft", "soft@25", "soft@50", "kappa0", "labels-alone"),
    *RULES,
    *("trunk:layers1", "trunk:layers2"),
)
SHOWN = ("ev", "ev_within", "rho_a", "ece_excess", "skill_over_task_rate")
TITLES = {
    "ev": "EV",
    "ev_within": "EV within rollouts",
    "rho_a": "advantage correlation",
    "ece_excess": "ECE above its floor",
    "skill_over_task_rate": "skill over task rate",
    "first_error_solver": "first error, solver: exact",
    "first_error_events": "first error, events: exact",
}
QUICK = (
    "engine.max_live=64",
    "training={threads: 1, micro_batch_tokens: 4096}",
    "tasks={num_companies: 16, num_train: 32, num_val: 8, num_test: 8, level_shares: {1: 1.0}}",
    "sft={model: {hidden_size: 48, num_layers: 2, num_heads: 2, num_kv_heads: 1, head_dim: 24, "
    "intermediate_size: 96, vocab_size: 512, initializer_range: 0.12}, num_demonstrations: 192, "
    "shares: {oracle: 0.3, over_collector: 0.5, noisy_adaptive: 0.2}, num_updates: 100, warmup_updates: 5, "
    "batch_rows: 16, learning_rate: 0.01}",
    "rollouts.sampling.max_response_tokens=256",
    "actor.sampling.max_response_tokens=256",
    "evaluation.sampling.max_response_tokens=256",
    "labels={max_states: 48, num_continuations: 2}",
    "critic={fit_share: 0.5, validate_share: 0.25, fit_continuations: true, head_updates: 2, "
    "head_learning_rate: 0.001, learning_rate: 0.0005, max_epochs: 2, batch_states: 64, "
    "evaluations_per_epoch: 1}",
    "critic_report={tasks_per_split: 8, draws: 2, num_continuations: 2, bootstrap: 100, guided: false, "
    "sibling_sets: 0, probe_rollouts: 0}",
)
"""Settings of --quick: a 60-thousand-parameter policy that shows nothing but that all of this works."""
QUICK_VARIANTS = ("soft", "soft@50", "kappa0", "monte_carlo", "td", "trunk:layers1")
AIMS = {"ev": 0.7, "ev_within": 0.5, "rho_a": 0.6}
MAX_EXCESS = 0.02
NUM_SEEDS = 3


def of_soft(results: Any) -> list[dict[str, Any]]:
    """Returns the rows of the method itself, one per seed."""
    rows = [row for row in results["rows"] if row["variant"] == "soft"]
    if not rows:
        raise KeyError("soft")
    return rows


def above_zero(results: Any, name: str) -> bool:
    """Returns whether the lower bound of a figure of the method is above 0 at every seed."""
    bounds = [row[name]["low"] for row in of_soft(results)]
    return all(bound is not None and bound > 0 for bound in bounds)


def reached(results: Any, name: str, aim: float) -> bool:
    """Returns whether a figure of the method is at least its aim at every seed."""
    values = [row[name]["value"] for row in of_soft(results)]
    return all(value is not None and value >= aim for value in values)


def has_all_seeds(rows: Sequence[dict[str, Any]]) -> bool:
    """Returns whether every variant, of `VARIANTS` and any other that has a row, has three seeds."""
    seeds: dict[str, set[int]] = {variant: set() for variant in VARIANTS}
    for row in rows:
        seeds.setdefault(row["variant"], set()).add(row["seed"])
    return all(len(of) >= NUM_SEEDS for of in seeds.values())


CRITERIA: dict[str, Any] = {
    "three seeds of every variant": lambda r: has_all_seeds(r["rows"]),
    "explained variance within rollouts above 0, interval": lambda r: above_zero(r, "ev_within"),
    "advantage correlation above 0, interval": lambda r: above_zero(r, "rho_a"),
    **{f"aim: {name} >= {aim}": lambda r, n=name, a=aim: reached(r, n, a) for name, aim in AIMS.items()},
    "aim: calibration error within .02 of its floor": lambda r: all(
        row["ece_excess"]["value"] <= MAX_EXCESS for row in of_soft(r)
    ),
    "first errors measured against solver and events": lambda r: all(
        row[f"first_error_{who}"]["num_wrong"] > 0 for row in r["rows"] for who in ("solver", "events")
    ),
}


class Material:
    """What all variants of a seed share: rollouts, their continuations, the audit.

    Attributes:
        config: of the run.
        folder: of the run.
        tasks: by id.
        rollouts: of the rollouts stage.
        sampled: everything that the labels stage sampled.
        samples: continuations by state.
        audited: everything that the audit sampled.
        values: the audit's values of the critic stage's critic, by rollout.
        made: how that critic was made.
        gate: what the gate says of it.
        policy_digest: of the starting policy.
        digests: of all of these.
    """

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        opened = {name: Artifact.open(folder, name) for name in STAGES}
        self.tasks: dict[str, Task] = {t.task_id: t for t in tasks_from(opened["tasks"].table("tasks"))}

        def rollouts_of(stage: str) -> list[Rollout]:
            return rollouts_from(opened[stage].table("rollouts"), opened[stage].table("steps"))

        self.rollouts = rollouts_of("rollouts")
        self.sampled = rollouts_of("labels")
        ids = {r.rollout_id for r in self.rollouts}
        self.samples = samples_of(self.sampled, ids, config.labels.num_continuations)
        self.values: dict[str, list[float]] = defaultdict(list)
        for row in opened["critic_report"].table("values").to_pylist():  # by rollout, steps in order
            self.values[row["rollout_id"]].append(row["value"])
        self.made = opened["critic"].report
        self.digests = [opened[name].content_digest for name in STAGES]
        self.audited = rollouts_of("critic_report")
        report, self.gate = (
            json.loads((folder / "critic_report" / f"{name}.json").read_text("utf-8"))
            for name in ("report", "gate")
        )
        self.policy_digest: str = report["policy_digest"]

    def key(self, *asked: Any) -> str:
        """Returns what a figure follows from: what is asked, settings, all that was sampled, and code."""
        code = [stage.code_version for stage in (LABELS_STAGE, CRITIC_STAGE, REPORT_STAGE)]
        return digest(*asked, self.config.critic.model_dump(mode="json"), self.digests, code)

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
            kappa=float(name.removeprefix("kappa")) if name.startswith("kappa") else settings.kappa,
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
    material: Material,
    labels: list[Label],
    rule: str,
    trunk: Path,
    *,
    changes: Mapping[str, Any] | None = None,
    by_heart: bool = False,
) -> tuple[Any, Any, dict[str, Any]]:
    """Returns a trainer with the best weights, the calibrator, and how the fit went.

    The clusters are split as the critic stage splits them.

    Args:
        material: of the seed.
        labels: of all parts.
        rule: of the labels.
        trunk: model folder to start from.
        changes: settings of the critic section that are other ones.
        by_heart: keep the last weights in place of the best, and calibrate on the rollouts that were fitted.
    """
    import torch

    from critics.model import make_critic
    from stages.backends import make_trainer

    config = material.config
    settings = config.critic.model_copy(update=dict(changes or {}))
    part_of = parts_of(material.rollouts, material.tasks, settings, seed=config.run.seed)

    def part(name: str) -> tuple[list[Rollout], list[Label]]:
        own = [label for label in labels if part_of[label.rollout_id] == name]
        ids = {label.rollout_id for label in own}
        return [r for r in material.rollouts if r.rollout_id in ids], own

    rollouts, own = part("fit")
    own = [label for label in own if rule == "soft" or label.label_source == rule]
    continued: list[Rollout] = []
    if settings.fit_continuations and rule == "soft":
        # Those of the labels that are given: a share of the budget bought no others.
        bought = {
            StateRef(label.rollout_id, label.step_index, label.context)
            for label in own
            if label.num_continuations
        }
        samples = {state: of for state, of in material.samples.items() if state in bought}
        continued = gone_on(samples, material.policy_digest)
        own += continued_labels(continued, label_policy_digest=material.policy_digest)
    rows = critic_rows(rollouts, own, continuations=continued, class_balance=settings.class_balance)
    ranked = []
    if settings.rank_weight:
        parents = {r.rollout_id: r for r in material.rollouts if part_of.get(r.rollout_id) == "fit"}
        ranked = ranked_sets(material.sampled, parents, first_draw=config.labels.num_continuations)
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
        ranked=ranked,
    )
    if not by_heart:
        with torch.no_grad():
            model.load_state_dict(stored[result.best])
    calibrating, _ = part("fit" if by_heart else "calibrate")
    calibration = outcome_states([r for r in calibrating if r.policy_digest == material.policy_digest])
    calibrator = calibrate(trainer, calibration, base_logit=result.base_logit)
    facts = {"converged": result.converged, "updates": result.num_updates, "fitted_rows": len(rows)}
    return trainer, calibrator, facts


def values_of(material: Material, trainer: Any, calibrator: Any) -> dict[str, np.ndarray]:
    """Returns a critic's calibrated values of the audit's bare rollouts."""
    from critics.contract import read_value_logits
    from critics.rows import value_positions
    from pipeline.training import TrainingRow

    whole = [r for r in material.audited if is_whole(r) and r.reward is not None and r.steps and not r.guided]
    rows = [
        TrainingRow(np.array((*r.prompt_token_ids, *r.response_token_ids), dtype=np.int32)) for r in whole
    ]
    z = read_value_logits(
        trainer.model, rows, [value_positions(r) for r in whole], material.config.training.micro_batch_tokens
    )
    return {
        r.rollout_id: calibrator(logits, step_index=np.array([step.step_index for step in r.steps]))
        for r, logits in zip(whole, z, strict=True)
    }


def audit_of(material: Material, values: dict[str, np.ndarray]) -> AuditData:
    """Returns the seed's audit of a critic, bare states."""
    from stages.critic_report import audit_data

    bare = [r for r in material.audited if not r.guided]
    start: Any = SimpleNamespace(config=material.config)
    return audit_data(start, bare, values, list(material.tasks.values()))


def judged(material: Material, values: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns the figures of a critic on the seed's audit, bare states."""
    config, audit = material.config, audit_of(material, values)
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
    config = load_config(Config, ROOT / options.config, overrides)
    material = Material(config, data_dir / run)
    trunks = dict(text.split("=", 1) for text in options.trunk)
    rows = []
    for variant in options.variants:
        said = trunks.get(variant.removeprefix("trunk:"), "")

        def make(variant: str = variant, said: str = said) -> dict[str, Any]:
            return {"seed": seed, "variant": variant} | row_of(options, material, variant, said)

        kept = data_dir / run / "quality" / f"{variant.replace(':', '-')}.json"
        rows.append(remembered(kept, material.key(variant, said), make))
        print_row(rows[-1])
    return rows


def remembered(path: Path, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns the row that a file keeps under this key, or makes and keeps it: a killed call goes on."""
    if path.is_file() and (row := json.loads(path.read_text("utf-8")))["key"] == key:
        return dict(row)
    row = {"key": key} | make()
    path.parent.mkdir(exist_ok=True)
    write_durably(path, (json.dumps(row) + "\n").encode())
    return row


def row_of(options: argparse.Namespace, material: Material, variant: str, said: str) -> dict[str, Any]:
    """Returns a variant's figures; `said` is what --trunk says of its trunk."""
    is_trunk = variant.startswith("trunk:")
    labels, rule, tokens = material.labels("soft" if is_trunk else variant)
    trunk = material.folder / "sft" / "policy"
    if is_trunk:
        trunk = trunk_of(options, material, variant.removeprefix("trunk:"), said)
    facts: dict[str, Any] = {"label_tokens": tokens, "trunk_parameters": parameters_of(trunk)}
    if variant == "soft" and material.config.labels.target == "soft":
        made = material.made
        facts |= {name: made[name] for name in ("converged", "updates")}
        facts["fitted_rows"] = made["labelled_rollouts"]["fit"] + made.get("continuations", 0)
        values = {name: np.array(of) for name, of in material.values.items()}
    else:
        changes = {"fit_continuations": False} if variant == "labels-alone" else {}
        trainer, calibrator, how = fitted(material, labels, rule, trunk, changes=changes)
        facts |= how
        values = values_of(material, trainer, calibrator)
    return facts | judged(material, values)


def trunk_of(options: argparse.Namespace, material: Material, name: str, said: str) -> Path:
    """Returns the folder of a named trunk, made if need be.

    Raises:
        SystemExit: nothing says what it is, or it reads other tokens.
    """
    policy = material.folder / "sft" / "policy"
    if not said:
        if not name.startswith("layers") or not name.removeprefix("layers").isdigit():
            raise SystemExit(f"trunk:{name}: say what it is by --trunk {name}=FOLDER or {name}=sft.key=value")
        return with_layers(policy, int(name.removeprefix("layers")), material.folder / "quality" / name)
    trunk = Path(said)
    if not trunk.is_dir():
        own = material.folder.with_name(f"{material.folder.name}-trunk-{name}")
        own.mkdir(exist_ok=True)
        if not (own / "tasks").exists():
            os.symlink(material.folder / "tasks", own / "tasks", target_is_directory=True)
        settings = [*options.settings, f"run.seed={material.config.run.seed}", *said.split(",")]
        make_stages(options.config, own.name, ("sft",), settings, own.parent)
        trunk = own / "sft" / "policy"
    check_same_tokenizer(trunk, policy)
    return trunk


def with_layers(policy: Path, num_layers: int, folder: Path) -> Path:
    """Returns a folder with the first layers of a policy.

    Raises:
        SystemExit: it has no more than these.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from pipeline.models import load_tokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32, local_files_only=True)
    if not 0 < num_layers < model.config.num_hidden_layers:
        raise SystemExit(f"trunk:layers{num_layers}: the policy has {model.config.num_hidden_layers} layers")
    model.model.layers = model.model.layers[:num_layers]
    model.config.num_hidden_layers = num_layers
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[:num_layers]
    model.save_pretrained(folder)
    load_tokenizer(policy).save_pretrained(folder)
    return folder


def parameters_of(folder: Path) -> int:
    """Returns the parameters of a model folder, by the planner."""
    from transformers import AutoConfig

    from pipeline.planner import shape_of

    return shape_of(AutoConfig.from_pretrained(folder, local_files_only=True)).parameters


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


def figure_of(row: dict[str, Any], name: str) -> dict[str, float | None]:
    """Returns a figure of a row with its bounds: of first errors the share found exactly."""
    found: dict[str, Any] = row[name]
    return found["exact"] if name.startswith("first_error") else found


def over_seeds(rows: Sequence[dict[str, Any]], name: str) -> dict[str, float | None]:
    """Returns the mean of a figure over seeds, with the lowest and the highest of their bounds.

    A bound that one seed does not know is not known: it may lie anywhere.
    """
    found = [figure_of(row, name) for row in rows]
    values = [x["value"] for x in found]
    if any(value is None for value in values):
        return {"value": None, "low": None, "high": None}
    lows, highs = ([x[side] for x in found] for side in ("low", "high"))
    return {
        "value": float(np.mean([value for value in values if value is not None])),
        "low": None if None in lows else min(lows),
        "high": None if None in highs else max(highs),
    }


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the table: a line per variant, means over seeds, brackets from lowest to highest bound."""
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    lines = [
        f"| variant | seeds | label tokens | trunk | converged | {' | '.join(TITLES.values())} |",
        "|---|---|---|---|---|" + "---|" * len(TITLES),
    ]
    for variant in variants:
        own = [row for row in rows if row["variant"] == variant]
        tokens, size = (np.mean([row[name] for row in own]) for name in ("label_tokens", "trunk_parameters"))
        cells = [f"{tokens:,.0f}", f"{size:,.0f}", f"{sum(row['converged'] for row in own)} of {len(own)}"]
        cells += [cell(over_seeds(own, name)) for name in TITLES]
        lines.append(f"| {variant} | {len(own)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def picture(rows: Sequence[dict[str, Any]]) -> str:
    """Returns one drawing: a panel per figure, a line per variant, a point with its interval per seed."""
    from pipeline.report.plots import BLUE, GREY, draw

    variants = list(dict.fromkeys(row["variant"] for row in rows))
    seeds = sorted({row["seed"] for row in rows})

    def paint(axes: Any) -> None:
        figure = axes.figure
        axes.remove()
        panels = figure.subplots(1, len(TITLES), sharey=True)
        for panel, (name, title) in zip(panels, TITLES.items(), strict=True):
            for row in rows:
                found = figure_of(row, name)
                if (value := found["value"]) is None:
                    continue
                bounds = [found[side] for side in ("low", "high")]
                low, high = (value if bound is None else bound for bound in bounds)
                at = (
                    variants.index(row["variant"])
                    + 0.5 * (seeds.index(row["seed"]) + 0.5) / len(seeds)
                    - 0.25
                )
                errors = [[max(0.0, value - low)], [max(0.0, high - value)]]
                filled = "white" if None in bounds else BLUE
                panel.errorbar([value], [at], xerr=errors, fmt="o", ms=3, color=BLUE, mfc=filled, capsize=2)
            panel.axvline(
                AIMS.get(name, MAX_EXCESS if name == "ece_excess" else 0), color=GREY, ls="--", lw=1
            )
            panel.set_title(title, fontsize=9)
        panels[0].set_yticks(range(len(variants)), labels=variants)
        panels[0].set_ylim(len(variants) - 0.5, -0.5)
        shown = [
            found for row in rows for name in TITLES if (found := figure_of(row, name))["value"] is not None
        ]
        if any(found[side] is None for found in shown for side in ("low", "high")):
            figure.supxlabel("hollow: a bound is not known", fontsize=9)

    return draw("quality", paint, size=(2.1 * len(TITLES), 1.2 + 0.4 * len(variants)))


def main(argv: Sequence[str] | None = None) -> int:
    """Makes every seed and variant, prints the table, writes the results; returns 1 if a criterion fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="configs/phone-l3-tiny.yaml")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: 0 1 2, with --quick 0")
    parser.add_argument("--variants", nargs="+", help=f"default: {' '.join(VARIANTS)}")
    parser.add_argument("--trunk", nargs="+", default=[], metavar="NAME=FOLDER or NAME=section.key=value,...")
    parser.add_argument(
        "--quick", action="store_true", help="one seed at tiny sizes, to see that all works; judges nothing"
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="section.key=value", dest="settings")
    parser.add_argument("--data-dir", type=Path, default=ROOT / "data")
    parser.add_argument(
        "--results",
        type=Path,
        help="default: benchmarks/results/critic_quality.json; of less than all variants and three seeds, or "
        "with another --config or --set, critic_quality.json beside their runs",
    )
    options = parser.parse_args(argv)
    if options.quick:
        options.data_dir = options.data_dir / "quick"  # no figure of it may pass for a result
        options.settings = [*QUICK, *options.settings]
    options.seeds = options.seeds or ([0] if options.quick else [0, 1, 2])
    options.variants = options.variants or list(QUICK_VARIANTS if options.quick else VARIANTS)
    # What cannot meet the criteria does not take the place of what did.
    whole = set(options.variants) >= set(VARIANTS) and len(set(options.seeds)) >= NUM_SEEDS
    as_committed = whole and options.config == parser.get_default("config") and not options.settings
    options.results = (
        options.results or (RESULTS if as_committed else options.data_dir) / "critic_quality.json"
    )
    rows: list[dict[str, Any]] = []
    for seed in options.seeds:
        rows += rows_of_seed(options, seed, options.data_dir.resolve())
    results = {
        "machine": machine_facts(),
        "config": options.config,
        "settings": options.settings,
        "trunks": options.trunk,
        "rows": rows,
    }
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    options.results.with_suffix(".svg").write_text(picture(rows) + "\n", encoding="utf-8")
    options.results.with_suffix(".md").write_text(as_markdown(rows), encoding="utf-8")
    print(as_markdown(rows))
    if options.quick:
        return 0
    return conclude(options.results, results, CRITERIA)


if __name__ == "__main__":
    sys.exit(main())
