"""How good critics get, and how that moves with label budget, kind of target and size of the trunk.

    python benchmarks/critic_quality.py                    # configs/phone-l3-tiny.yaml, seeds 0, 1, 2
    python benchmarks/critic_quality.py --quick            # minutes: tiny sizes, results beside its runs

For each seed the stages up to critic_report are made once, in `<data dir>/quality-seed<k>`. `soft` is the
critic that they made; every other variant fits one in this process on the same rollouts and continuations (or
a share of them), and all are judged on the same audit. Nothing is sampled but by the stages. Stages resume by
themselves and a variant's figures are kept in the seed's folder, so the same command goes on where it was
stopped. First errors are held against the solver's first fatal step and against the verifiers' events.

Variants: `soft` (the method), `soft@25`, `soft@50` (share of the continuations' tokens), `labels-alone`
(without critic.fit_continuations, and so are the rules), one for each target rule, and `trunk:layers<k>`, the
policy's first k layers as the trunk. On request `kappa<k>`, with so many pseudo-counts. Trunks of another
make are named by --trunk NAME=FOLDER, a model with the policy's tokenizer, or NAME=section.key=value[,...]:
the sft stage with these settings on the seed's tasks, in a run of its own; --variants then says `trunk:NAME`.

A rule is fitted without continuations; those of validating companies alone, which decide when any fit ends,
are its label tokens.

A second table has the method by level and by split; `val` has other tasks of companies that it was fitted
on. A third says what its values would explain of the same audit if they were corrected by what their reader
is not told: the task's level and the verifier's count of wrong steps so far, then the solver's V* as well.
Boosted trees, fitted to the audit itself in folds by company: a reference, no critic.

Two CPU cores take hours: of a seed the stages alone an hour, and each of ten more fits some ten minutes, as
the critic stage does. So seeds may be made by commands of their own, at one time, on other days or machines:
a seed takes the place of its own rows in the results and leaves those of other seeds, if they were made with
the same settings and code. A trunk that sft makes takes as long as sft.
Results: benchmarks/results/critic_quality.json, .md (the table) and .svg; with fewer variants beside the
runs. Exits 1 if a criterion fails, so until three seeds are there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._critic_tables import AIMS, MAX_EXCESS, as_markdown, cell, picture
from benchmarks._critics import (
    QUICK,
    STAGES,
    Material,
    audit_of,
    fitted,
    make_stages,
    recipe_of,
    remembered,
    values_of,
)
from benchmarks._measuring import RESULTS, ROOT, conclude
from benchmarks.demo_seeds import machine_facts
from critics.audit.data import AuditData, AuditRollout
from critics.audit.first_error import first_error
from critics.audit.measures import measure
from critics.labels.named_targets import RULES
from critics.logit import logit
from pipeline.config import load_config
from pipeline.statistics import Interval, interval_dict
from stages.settings import Config

VARIANTS = (
    *("soft", "soft@25", "soft@50", "labels-alone"),
    *RULES,
    *("trunk:layers1", "trunk:layers2"),
)
SHOWN = ("ev", "ev_within", "rho_a", "ece_excess", "skill_over_task_rate")
TOLD = {
    "its value and place": (),
    "level, errors so far": ("level", "errors"),
    "and V*": ("level", "errors", "v_star"),
}
"""What the trees of the third table are told beside value and place."""
QUICK_VARIANTS = ("soft", "soft@50", "kappa2", "monte_carlo", "td", "trunk:layers1")
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
    "first errors: located better than by a constant value, against solver and events": lambda r: all(
        row[f"first_error_{who}"]["f1"]["value"] > row[f"first_error_{who}"]["f1_of_constant"]
        for row in of_soft(r)
        for who in ("solver", "events")
    ),
}


def judged(material: Material, values: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns the figures of a critic on the seed's audit, bare states."""
    config, audit = material.config, audit_of(material, values)
    found = measure(audit, num_resamples=config.critic_report.bootstrap, seed=config.run.seed)
    located = {"events": located_by(audit.rollouts), "solver": located_by(with_fatal_steps(audit))}
    return {name: interval_dict(found[name]) for name in (*SHOWN, "ece", "rmse", "bias")} | {
        f"first_error_{who}": {
            name: interval_dict(x) if isinstance(x, Interval) else x for name, x in of.items()
        }
        for who, of in located.items()
    }


def located_by(rollouts: Sequence[AuditRollout]) -> dict[str, Any]:
    """Returns `first_error` of the rollouts, and the F1 of a value that never changes: a fall at the end."""
    constant = first_error([replace(r, values=(0.5,) * len(r.values)) for r in rollouts])
    return first_error(rollouts) | {"f1_of_constant": constant["f1"].value}


def parts_of_audit(material: Material, audit: AuditData) -> list[dict[str, Any]]:
    """Returns the figures of the second table, a row per level and per split."""
    resamples, seed = material.config.critic_report.bootstrap, material.config.run.seed
    masks = {f"level {level}": audit.level == level for level in np.unique(audit.level)}
    masks |= {str(split): audit.split == split for split in np.unique(audit.split)}
    rows = []
    for name, mask in masks.items():
        part = audit.where(mask)
        found = measure(part, num_resamples=resamples, seed=seed)
        rows.append(
            {"part": name, "states": len(part)} | {x: interval_dict(found[x]) for x in (*AIMS, "ece_excess")}
        )
    return rows


def told_more(audit: AuditData, names: Sequence[str], seed: int) -> AuditData:
    """Returns the audit with values that were corrected by what is named, in ten folds by company.

    Args:
        audit: of a critic.
        names: of `level`, `errors` (wrong steps so far, as the verifier counts them) and `v_star`.
        seed: of the trees.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import GroupKFold

    wrong = {
        r.rollout_id: np.cumsum([0, *(status == "wrong" for status in r.statuses)]) for r in audit.rollouts
    }
    known = {
        "level": audit.level,
        "errors": np.array([wrong[r][i] for r, i in zip(audit.rollout_id, audit.step_index, strict=True)]),
        "v_star": audit.v_star,
    }
    seen = [logit(audit.p), audit.step_index, audit.position, *(known[name] for name in names)]
    X, share, p = np.stack(seen, axis=1).astype(float), audit.k / audit.K, np.zeros(len(audit.p))
    folds = GroupKFold(min(10, len(set(audit.cluster))))
    for fit, told in folds.split(X, groups=audit.cluster):
        trees = HistGradientBoostingClassifier(
            learning_rate=0.05, max_iter=150, max_leaf_nodes=12, min_samples_leaf=40, random_state=seed
        )
        y = np.repeat([1, 0], len(fit))
        trees.fit(X[[*fit, *fit]], y, sample_weight=np.concatenate([share[fit], 1 - share[fit]]))
        p[told] = trees.predict_proba(X[told])[:, 1]
    return replace(audit, p=np.clip(p, 1e-3, 1 - 1e-3))


def told_of(material: Material, audit: AuditData) -> dict[str, dict[str, Any]]:
    """Returns the figures of the third table, by what the trees are told."""
    resamples, seed = material.config.critic_report.bootstrap, material.config.run.seed
    found = {
        name: measure(told_more(audit, names, seed), num_resamples=resamples, seed=seed)
        for name, names in TOLD.items()
    }
    return {name: {x: interval_dict(of[x]) for x in AIMS} for name, of in found.items()}


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
    if variant == "soft":
        audit = audit_of(material, values)
        facts |= {"parts": parts_of_audit(material, audit), "told": told_of(material, audit)}
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
        if not os.path.lexists(own / "tasks"):
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

    from pipeline.models.policy import load_tokenizer

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

    from pipeline.planner.memory import shape_of

    return shape_of(AutoConfig.from_pretrained(folder, local_files_only=True)).parameters


def check_same_tokenizer(one: Path, other: Path) -> None:
    """Raises SystemExit unless two policies read the same token ids."""
    from pipeline.models.policy import load_tokenizer, tokenizer_digest

    if tokenizer_digest(load_tokenizer(one)) != tokenizer_digest(load_tokenizer(other)):
        raise SystemExit(
            f"{one} has another tokenizer than {other}; change only sft.model's sizes, not its vocabulary"
        )


def print_row(row: dict[str, Any]) -> None:
    """Prints a line of the table."""
    cells = "  ".join(f"{name} {cell(row[name])}" for name in SHOWN)
    solver = row["first_error_solver"]
    print(
        f"seed {row['seed']} {row['variant']:<14} {row['label_tokens']:>9,} tokens  {cells}  first error "
        f"against the solver {cell(solver['exact'])}, F1 {cell(solver['f1']).split()[0]}",
        flush=True,
    )


def of_other_seeds(path: Path, recipe: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Returns `rows` and how they were `made` that a results file has of seeds that are not made now.

    None of them if its rows were made by another recipe.
    """
    found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    rows = [row for row in found.get("rows", ()) if row["seed"] not in seeds]
    if rows and found.get("recipe") != recipe:
        others = sorted({row["seed"] for row in rows})
        print(f"{path}: seeds {others} are left out: other settings or code made them", file=sys.stderr)
        rows = []
    left = {str(row["seed"]) for row in rows}
    return {"rows": rows, "made": {seed: found["made"][seed] for seed in left}}


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
        help="default: benchmarks/results/critic_quality.json; of less than all variants, or with another "
        "--config or --set of what is made, critic_quality.json beside their runs",
    )
    options = parser.parse_args(argv)
    if options.quick:
        options.data_dir = options.data_dir / "quick"  # no figure of it may pass for a result
        options.settings = [*QUICK, *options.settings]
    options.seeds = sorted(set(options.seeds or ([0] if options.quick else range(NUM_SEEDS))))
    options.variants = options.variants or list(QUICK_VARIANTS if options.quick else VARIANTS)
    recipe, committed = (
        recipe_of(load_config(Config, ROOT / config, settings))
        for config, settings in ((options.config, options.settings), (parser.get_default("config"), ()))
    )
    # A row that is missing, or made otherwise, does not take the place of one that is there.
    as_committed = set(options.variants) >= set(VARIANTS) and recipe == committed
    options.results = (
        options.results or (RESULTS if as_committed else options.data_dir) / "critic_quality.json"
    )
    results = of_other_seeds(options.results, recipe, options.seeds)
    for seed in options.seeds:
        results["rows"] += rows_of_seed(options, seed, options.data_dir.resolve())
        how = {"settings": options.settings, "trunks": options.trunk}
        results["made"][str(seed)] = how | machine_facts()
    rows = sorted(results["rows"], key=lambda row: row["seed"])
    results = {
        "config": options.config,
        "recipe": recipe,
        "made": dict(sorted(results["made"].items())),
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
