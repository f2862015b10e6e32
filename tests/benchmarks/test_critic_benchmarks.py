"""critic_quality.py and critic_drift.py: what they share, what they say, and that they work at tiny sizes."""

from __future__ import annotations

import copy
import json
import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import _critic_tables as tables
from benchmarks import critic_drift
from benchmarks import critic_gate as gate_bench
from benchmarks import critic_quality as bench
from benchmarks import critic_scoring as scoring
from benchmarks._measuring import judge
from critics.audit.data import AuditData, AuditRollout
from critics.audit.measures import measure
from critics.labels.choose_states import StateRef
from stages.settings import Drift


def interval(value: float | None, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high}


def row(variant: str = "soft", seed: int = 0, **changes: Any) -> dict[str, Any]:
    found = {
        "ev": interval(0.8, 0.7, 0.9),
        "ev_within": interval(0.6, 0.5, 0.7),
        "rho_a": interval(0.7, 0.6, 0.8),
        "ece_excess": interval(0.01, 0.0, 0.02),
        "skill_over_task_rate": interval(0.4, 0.3, 0.5),
    }
    errors = {"exact": interval(0.5, 0.4, 0.6), "f1": interval(0.5), "f1_of_constant": 0.1}
    base = {
        "seed": seed,
        "variant": variant,
        "label_tokens": 1000,
        "trunk_parameters": 60_000,
        "converged": True,
        "first_error_solver": errors,
        "first_error_events": errors,
    }
    return copy.deepcopy(base | found | changes)


def rows() -> list[dict[str, Any]]:
    """Three seeds of every variant; those of the method come first."""
    return [row(variant, seed) for variant in bench.VARIANTS for seed in range(3)]


@pytest.mark.parametrize(
    ("name", "value", "criterion"),
    [
        ("ev_within", interval(0.6, 0.0, 0.7), "explained variance within rollouts above 0, interval"),
        ("rho_a", interval(0.7, None, None), "advantage correlation above 0, interval"),
        ("ev", interval(0.69, 0.6, 0.8), "aim: ev >= 0.7"),
        ("ev_within", interval(0.49, 0.4, 0.6), "aim: ev_within >= 0.5"),
        ("rho_a", interval(0.59, 0.5, 0.7), "aim: rho_a >= 0.6"),
        ("ece_excess", interval(0.021, 0.0, 0.04), "aim: calibration error within .02 of its floor"),
        (
            "first_error_events",
            {"f1": interval(0.1), "f1_of_constant": 0.1},
            "first errors: located better than by a constant value, against solver and events",
        ),
    ],
)
def test_one_seed_that_misses_a_criterion_fails_it_alone(name: str, value: Any, criterion: str) -> None:
    assert all(judge({"rows": rows()}, bench.CRITERIA).values())
    judged = judge({"rows": [*rows()[:2], row(seed=2, **{name: value}), *rows()[3:]]}, bench.CRITERIA)
    assert [criterion for criterion, met in judged.items() if not met] == [criterion]


def test_other_variants_need_not_meet_the_aims_but_the_method_must_be_there() -> None:
    poor = [row(r["variant"], r["seed"], ev=interval(0.1, 0.0, 0.2)) for r in rows()[3:]]
    assert all(judge({"rows": rows()[:3] + poor}, bench.CRITERIA).values())
    assert not all(judge({"rows": poor}, bench.CRITERIA).values())


@pytest.mark.parametrize(
    "left",
    [
        lambda r: r["variant"] == "soft",
        lambda r: r["seed"] == 0,
        lambda r: (r["seed"], r["variant"]) != (1, "soft@25"),
    ],
)
def test_a_variant_without_three_seeds_fails_and_nothing_else(left: Any) -> None:
    judged = judge({"rows": [r for r in rows() if left(r)]}, bench.CRITERIA)
    assert [name for name, met in judged.items() if not met] == ["three seeds of every variant"]
    one_more = judge({"rows": [*rows(), row("trunk:wide")]}, bench.CRITERIA)
    assert [name for name, met in one_more.items() if not met] == ["three seeds of every variant"]


@pytest.fixture
def told_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The benchmark with rows that cost nothing; its first arguments."""

    def made(options: Any, seed: int, data_dir: Path) -> list[dict[str, Any]]:
        return [row(variant, seed) for variant in options.variants]

    monkeypatch.setattr(bench, "rows_of_seed", made)
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(bench, "picture", lambda rows: "<svg/>")
    return ["--data-dir", str(tmp_path / "data")]


@pytest.mark.parametrize(
    ("argv", "committed", "code"),
    [
        ([], True, 0),
        (["--seeds", "0"], True, 1),
        (["--variants", "soft"], False, 1),
        (["--variants", *bench.VARIANTS, "trunk:wide", "--seeds", "3", "4", "5"], True, 0),
        (["--set", "training.threads=1"], True, 0),
        (["--set", "labels.max_states=100"], False, 0),
        (["--config", "configs/demo.yaml"], False, 0),
        (["--quick"], False, 0),
    ],
)
def test_only_all_variants_made_alike_take_the_place_of_committed_results(
    argv: list[str], committed: bool, code: int, tmp_path: Path, told_rows: list[str]
) -> None:
    assert bench.main([*told_rows, *argv]) == code
    assert (tmp_path / "results" / "critic_quality.json").exists() == committed
    assert len(list(tmp_path.rglob("critic_quality.json"))) == 1


def test_seeds_made_by_commands_of_their_own_become_one_table(
    tmp_path: Path, told_rows: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def seeds() -> list[int]:
        found = json.loads((tmp_path / "results" / "critic_quality.json").read_text())
        assert [int(seed) for seed in found["made"]] == sorted({r["seed"] for r in found["rows"]})
        assert len(found["rows"]) == len(bench.VARIANTS) * len(found["made"])
        return sorted(int(seed) for seed in found["made"])

    assert bench.main([*told_rows, "--seeds", "1", "1"]) == 1
    assert bench.main([*told_rows, "--seeds", "0"]) == 1
    assert bench.main([*told_rows, "--seeds", "0"]) == 1
    assert seeds() == [0, 1]
    assert bench.main([*told_rows, "--seeds", "2"]) == 0
    assert seeds() == [0, 1, 2]
    monkeypatch.setattr("benchmarks._critics.CODE_VERSION", -1)
    capsys.readouterr()
    assert bench.main([*told_rows, "--seeds", "1"]) == 1
    assert seeds() == [1]
    assert "seeds [0, 2] are left out: other settings or code made them" in capsys.readouterr().err


@pytest.mark.parametrize(
    "ask",
    [
        lambda options, folder: bench.rows_of_seed(options, 0, folder),
        lambda options, folder: critic_drift.held_beside(options, folder, folder),
    ],
    ids=["quality", "drift"],
)
def test_a_configuration_is_of_the_repository_wherever_the_caller_stands(
    ask: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stages are started in the repository's root; both must mean the same file."""
    asked: list[Path] = []

    def noted(config: Any, path: Path, overrides: Any) -> Any:
        asked.append(path)
        raise InterruptedError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipeline.config.load_config", noted)
    monkeypatch.setattr(bench, "load_config", noted)
    monkeypatch.setattr(bench, "make_stages", lambda *arguments: None)
    options: Any = SimpleNamespace(config="configs/phone-l3-tiny.yaml", settings=[], run="r")
    with pytest.raises(InterruptedError):
        ask(options, tmp_path)
    assert asked == [bench.ROOT / "configs" / "phone-l3-tiny.yaml"]
    assert asked[0].is_file()


def test_aims_are_met_by_the_value_and_at_the_aim() -> None:
    at = {
        "ev": interval(0.7, 0.2, 0.9),
        "ev_within": interval(0.5, 0.1, 0.7),
        "rho_a": interval(0.6, 0.1, 0.8),
    }
    assert all(judge({"rows": [*rows()[1:], row(**at)]}, bench.CRITERIA).values())


def test_the_table_has_means_over_seeds_and_the_outermost_bounds() -> None:
    rows = [row(), row(seed=1, ev=interval(0.6, 0.3, 0.7)), row("soft@25", label_tokens=250)]
    lines = tables.as_markdown(rows).splitlines()
    assert len(lines) == 4
    assert "| soft | 2 | 1,000 | 60,000 | 2 of 2 | 0.70 [0.30, 0.90] |" in lines[2]
    assert lines[3].startswith("| soft@25 | 1 | 250 |")
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
    undefined = tables.as_markdown([row(), row(seed=1, ev=interval(None))])
    assert "- [-, -]" in undefined
    half = tables.as_markdown([row(), row(seed=1, ev=interval(0.6, None, 0.95))])
    assert "0.70 [-, 0.95]" in half  # one seed's bound may lie anywhere
    told = {name: {x: interval(0.9, 0.8, 1.0) for x in tables.AIMS} for name in bench.TOLD}
    assert tables.as_markdown([row(told=told), row("td")]).count("0.90 [0.80, 1.00]") == 3 * len(bench.TOLD)


def test_the_drawing_has_every_variant_and_every_figure() -> None:
    svg = tables.picture([row(), row(seed=1, ev=interval(None)), row("td")])
    assert svg.startswith("<svg")
    for text in (*tables.TITLES.values(), "soft", "td"):
        assert f">{text}<" in svg
    assert "hollow" not in svg
    unknown = tables.picture([row(), row(seed=1, ev=interval(0.6, None, 0.7))])
    assert ">hollow: a bound is not known<" in unknown
    assert unknown.count("fill: #ffffff; stroke: #0b5cad") > svg.count("fill: #ffffff; stroke: #0b5cad")


def test_the_drift_s_drawing_has_no_band_where_a_bound_is_not_known() -> None:
    def entry(i: int, **bounds: float) -> dict[str, Any]:
        return {"iteration": i, "bias": 0.1, "rho_a": 0.5} | bounds

    known = [entry(i, rho_a_low=0.3, rho_a_high=0.7) for i in range(4)]
    unknown = [*known[:2], entry(2), entry(3)]
    drawn = [critic_drift.picture({"far": entries}) for entries in (known, unknown)]
    # A band is one closed outline: out along its lower bounds, back along the upper ones.
    points = [
        max(len(re.findall("[ML] ", path)) for path in re.findall(r' d="([^"]+)"', svg)) for svg in drawn
    ]
    assert points[1] < points[0]


def test_a_share_of_the_labels_is_whole_states_and_shares_are_nested() -> None:
    def sample(tokens: int) -> Any:
        return SimpleNamespace(num_trainable_tokens=tokens)

    rng = np.random.default_rng(0)
    states = [StateRef(f"r{i}", 0, "bare") for i in range(60)]
    material: Any = SimpleNamespace(
        rollouts=[SimpleNamespace(rollout_id=f"r{i}", seed=i) for i in range(60)],
        samples={s: [sample(int(rng.integers(5, 40))) for _ in range(2)] for s in states},
    )

    def tokens(of: Any) -> int:
        return sum(r.num_trainable_tokens for members in of.values() for r in members)

    whole, half, quarter = (bench.Material.share(material, share) for share in (1.0, 0.5, 0.25))
    assert whole == material.samples
    assert quarter.keys() < half.keys() < whole.keys()
    for part, share in ((half, 0.5), (quarter, 0.25)):
        assert share * tokens(whole) - 80 < tokens(part) <= share * tokens(whole)
        assert all(part[state] == whole[state] for state in part)


def test_trees_that_are_told_of_errors_explain_what_errors_decide_and_no_more() -> None:
    """V is .8 before the first wrong step and .2 after it; the critic says .5 everywhere."""
    rng, T, num = np.random.default_rng(0), 6, 240
    first = rng.integers(0, 2 * T, size=num)  # half of the rollouts have no wrong step
    rollouts = [
        AuditRollout(
            f"r{i}", f"t{i}", "bare", 0.0, statuses=tuple("wrong" if t == e else "ok" for t in range(T))
        )
        for i, e in enumerate(first)
    ]
    at, place = np.repeat(np.arange(num), T), np.tile(np.arange(T), num)
    V = np.where(place > first[at], 0.2, 0.8)
    audit = AuditData(
        rollout_id=np.array([f"r{i}" for i in at]),
        step_index=place,
        context=np.full(len(at), "bare"),
        task_id=np.array([f"t{i}" for i in at]),
        cluster=np.array([f"c{i // 4}" for i in at]),
        level=rng.integers(1, 4, size=num)[at],
        split=np.full(len(at), "val"),
        position=place / T,
        p=np.full(len(at), 0.5),
        k=rng.binomial(8, V),
        K=np.full(len(at), 8),
        v_star=np.full(len(at), np.nan),
        rollouts=tuple(rollouts),
    )
    figures = {
        names: measure(bench.told_more(audit, names, 0), num_resamples=50, seed=0)
        for names in ((), ("level",), ("errors",))
    }
    assert figures["errors",]["ev"].value > 0.9
    assert figures["errors",]["rho_a"].value > 0.9
    # The place alone tells of some of it; a level that means nothing adds nothing.
    assert figures[()]["ev"].value < 0.2
    assert abs(figures["level",]["ev"].value - figures[()]["ev"].value) < 0.05


def test_the_first_fatal_step_is_the_first_that_lowers_what_could_be_reached(make_known: Any) -> None:
    audit = make_known(
        {"a": ([1.0, 1.0, 0.0, 0.0], 0.0), "b": ([1.0, 1.0], 1.0), "c": ([1.0, 0.9, 0.9], 0.0)}
    )
    found = {r.rollout_id: r.statuses for r in bench.with_fatal_steps(audit)}
    assert found == {
        "a": ("ok", "wrong", "ok", "ok"),
        "b": ("ok", "ok"),
        "c": ("wrong", "ok", "ok"),
    }


@pytest.fixture
def make_known() -> Any:
    from critics.audit.data import AuditRollout

    def make(rollouts: dict[str, tuple[list[float], float]]) -> Any:
        return SimpleNamespace(
            rollout_id=[name for name, (along, _) in rollouts.items() for _ in along],
            step_index=[i for along, _ in rollouts.values() for i in range(len(along))],
            v_star=[v for along, _ in rollouts.values() for v in along],
            rollouts=[
                AuditRollout(
                    name,
                    "t",
                    "bare",
                    reward,
                    level=1,
                    split="val",
                    values=tuple(along),
                    texts=("",) * len(along),
                    statuses=("unknown",) * len(along),
                    messages=("",) * len(along),
                )
                for name, (along, reward) in rollouts.items()
            ],
        )

    return make


def test_an_unknown_trunk_is_asked_for() -> None:
    material: Any = SimpleNamespace(folder=Path("nowhere"))
    with pytest.raises(SystemExit, match="say what it is by --trunk wide="):
        bench.trunk_of(SimpleNamespace(), material, "wide", "")


def test_design_has_the_gate_s_committed_table() -> None:
    results = json.loads((bench.ROOT / "benchmarks" / "results" / "critic_gate.json").read_text("utf-8"))
    assert gate_bench.as_markdown(results["rows"]) in (bench.ROOT / "docs" / "results.md").read_text("utf-8")
    assert judge(results, gate_bench.CRITERIA) == results["criteria"]
    assert all(results["criteria"].values())  # DESIGN says that each fails for its reason


def test_design_tells_of_the_run_that_changed_a_reason() -> None:
    path = bench.ROOT / "benchmarks" / "results" / "critic_gate_seed1.json"
    results = json.loads(path.read_text("utf-8"))
    failed = [name for name, met in results["criteria"].items() if not met]
    assert failed == ["label-shuffled: refused for rho_a and skill_over_position"]
    for name, bad in gate_bench.FITTED.items():
        assert set(bad.reasons) <= set(gate_bench.row_of(results, name)["failed"])
    row, told = (
        gate_bench.row_of(results, "label-shuffled"),
        " ".join((bench.ROOT / "docs" / "results.md").read_text("utf-8").split()),
    )
    for name, words in (
        ("rho_a", "rho_A ({:.2f} [{:.2f}, {:.2f}])"),
        ("skill_over_position", "{:.3f} [{:.3f}, {:.3f}]"),
    ):
        assert words.format(*(row[name][x] for x in ("value", "low", "high"))) in told


def test_design_tells_of_the_run_in_which_the_method_s_own_critic_was_refused() -> None:
    path = bench.ROOT / "benchmarks" / "results" / "critic_gate_seed2.json"
    results = json.loads(path.read_text("utf-8"))
    assert judge(results, gate_bench.CRITERIA) == results["criteria"]
    failed = [name for name, met in results["criteria"].items() if not met]
    assert failed == ["the method's critic passes here", "and in its run, where it is whole"]
    row = gate_bench.row_of(results, gate_bench.METHOD)
    assert set(row["failed"]) == {"ece_excess"}
    excess = [row["ece_excess"][x] for x in ("value", "low", "high")]
    told = " ".join((bench.ROOT / "docs" / "results.md").read_text("utf-8").split())
    assert "its calibration alone ({:.3f} [{:.3f}, {:.3f}] above the floor".format(*excess) in told


def test_design_has_the_quality_s_committed_tables() -> None:
    """All three tables, and by name each criterion that fails."""
    root = Path(__file__).parents[2]
    results = json.loads((root / "benchmarks" / "results" / "critic_quality.json").read_text())
    design = (root / "docs" / "results.md").read_text()
    committed = (root / "benchmarks" / "results" / "critic_quality.md").read_text()
    assert committed == tables.as_markdown(results["rows"])
    assert committed in design
    assert results["criteria"] == judge(results, bench.CRITERIA)
    failed = [name for name, met in results["criteria"].items() if not met]
    told = " ".join(design.split())
    assert all(f"*{name}*" in told for name in failed), failed
    assert {row["variant"] for row in results["rows"]} == set(bench.VARIANTS)


def test_design_has_the_committed_speed_of_scoring() -> None:
    results = json.loads((bench.ROOT / "benchmarks" / "results" / "critic_scoring.json").read_text("utf-8"))
    assert judge(results, scoring.CRITERIA) == results["criteria"]
    assert all(results["criteria"].values())
    row = scoring.row_of(results, 16)
    speedup = [f"{row['speedup'][name]:.1f}" for name in ("median", "min", "max")]
    said = "at 16 steps {} times [{}, {}] as fast as prefix by prefix, and equal to {:.0e}"
    text = said.format(*speedup, row["difference"]).replace("e-06", "e-6")
    assert text in " ".join((bench.ROOT / "docs" / "results.md").read_text("utf-8").split())


def test_design_has_the_drift_s_committed_figures() -> None:
    results = json.loads((bench.ROOT / "benchmarks" / "results" / "critic_drift.json").read_text("utf-8"))
    design = (bench.ROOT / "docs" / "results.md").read_text("utf-8")
    assert critic_drift.as_markdown(results["held"]) in design
    assert judge(results, critic_drift.CRITERIA) == results["criteria"]
    failed = [name for name, met in results["criteria"].items() if not met]
    assert failed == ["far: the level drifts by more than 10 points", "stale: caught"]
    assert all(f"*{name}*" in " ".join(design.split()) for name in failed)
    far, watched = (results["arms"][arm] for arm in ("far", "watched"))
    biases = [np.mean([entry["bias"] for entry in entries[-8:]]) for entries in (far, watched)]
    paid = [entry for entry in far if "steps_off" in entry]
    levels = [(entry["correction_shift"], entry["correction_slope"]) for entry in watched]
    refits = sum(before != after for before, after in pairwise(levels))
    assert results["refitted"]["0"] == pytest.approx(np.mean([abs(entry["bias"]) for entry in far]))
    off = {arm: [entry["level_off"] for entry in of] for arm, of in results["arms"].items()}
    said = (
        f"bias {biases[0]:.2f} and watched's {biases[1]:.2f}",
        "Success on `val` is " + ", ".join(f"{entry['success']:.2f}" for entry in far if "success" in entry),
        f"flagged in {sum(off['far']):.0f} of {len(far)} iterations, "
        f"watched's, refitted {'once' if refits == 1 else f'{refits} times'}, in {sum(off['watched']):.0f}",
        f"{sum(bool(entry['steps_off']) for entry in paid)} of {len(paid)} paid checks find the steps off",
        f"the first at a KL of {next(entry['kl'] for entry in paid if entry['steps_off']):.2f}",
        "rho_A " + ", ".join(f"{entry['rho_a']:.2f}" for entry in paid),
        "is {0:.3f} as they were, {1:.3f} refitted to one iteration, {3:.3f} to three "
        "and {5:.3f} to five".format(*(results["refitted"].get(str(i), 0) for i in range(6))),
    )
    stale, half = results["held"]["stale"], [(e["bias_high"] - e["bias_low"]) / 2 for e in (far[0], far[-1])]
    bounds = [stale[f"sign_agreement{side}"] for side in ("", "_low", "_high")]
    said += (
        "signs agree in {:.2f} [{:.2f}, {:.2f}]".format(*bounds),
        f"differs by {abs(far[-1]['bias'] - far[0]['bias']):.2f} between the first iteration and the last, "
        f"which are known to {half[0]:.2f} and {half[1]:.2f}",
        f"in {sum(abs(entry['bias']) > 0.1 for entry in far)} of the 24 it was more than .1",
    )
    told = " ".join(design.split())
    for text in said:
        assert re.sub(r"(?<!\d)0\.", ".", text) in told, text


@pytest.mark.soak
def test_quick_makes_a_table_shares_what_it_sampled_and_goes_on(tmp_path: Path) -> None:
    command = ["--quick", "--data-dir", str(tmp_path)]
    assert bench.main([*command, "--variants", "soft", "soft@50"]) == 0
    sampled = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("rollouts*.parquet")}
    assert bench.main(command) == 0
    folder = tmp_path / "quick"
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("rollouts*.parquet")} == sampled
    rows = {r["variant"]: r for r in json.loads((folder / "critic_quality.json").read_text())["rows"]}
    assert tuple(rows) == bench.QUICK_VARIANTS
    assert rows["soft@50"]["label_tokens"] <= rows["soft"]["label_tokens"] / 2
    assert 0 < rows["monte_carlo"]["label_tokens"] < rows["soft"]["label_tokens"]  # those that end the fit
    assert rows["trunk:layers1"]["trunk_parameters"] < rows["soft"]["trunk_parameters"]
    assert (folder / "critic_quality.md").read_text().count("\n") == 8 + len(rows) + 3 + len(bench.TOLD)
    assert (folder / "critic_quality.svg").read_text().startswith("<svg")

    # The stage's critic and a fit in this process are the same critic: variants differ in what they vary.
    run = folder / "quality-seed0"
    overrides = [*bench.QUICK, "run.seed=0", f"run.data_dir={json.dumps(str(folder))}"]
    config = bench.load_config(bench.Config, bench.ROOT / "configs" / "phone-l3-tiny.yaml", overrides)
    material = bench.Material(config, run)
    labels, rule, _ = material.labels("soft")
    trainer, calibrator, _ = bench.fitted(material, labels, rule, run / "sft" / "policy")
    values = bench.values_of(material, trainer, calibrator)
    assert values.keys() == material.values.keys()
    for name, found in values.items():
        np.testing.assert_allclose(found, material.values[name], atol=1e-5)

    # The same run before the gate, beside critics that must not pass.
    assert gate_bench.main(command) == 0
    judged = {r["critic"]: r for r in json.loads((folder / "critic_gate.json").read_text())["rows"]}
    assert judged.keys() >= {"soft", *gate_bench.NO_CRITICS, "label-shuffled", "under-trained", "overfitted"}
    for name in (*gate_bench.NO_CRITICS, "under-trained"):
        assert set(judged[name]["must_fail"]) <= set(judged[name]["failed"])

    # The same run serves the drift's benchmark.
    assert critic_drift.main(["--quick", "--data-dir", str(tmp_path)]) == 0
    drift = json.loads((folder / "critic_drift.json").read_text())
    assert [len(drift["arms"][arm]) for arm in critic_drift.ARMS] == [3, 3]
    assert any("states" in entry for entry in drift["arms"]["watched"])  # so few may say nothing of steps
    assert drift["held"].keys() == {"fresh", "stale", "foreign"}
    assert drift["refitted"].keys() == set(map(str, critic_drift.REFITS))
    assert sampled.items() <= {p: p.stat().st_mtime_ns for p in tmp_path.rglob("rollouts*.parquet")}.items()


def far_entries(*biases: float, kl: float | None = 0.5, alpha: float = 0.5) -> list[dict[str, Any]]:
    """One entry per iteration; `alpha` is the last one's."""
    measured = {} if kl is None else {"kl": kl}
    return [
        {"bias": bias, "steps_off": 0.0, "alpha": alpha if i == len(biases) - 1 else 0.5}
        | {"correction_slope": 1.0, "correction_shift": 0.0}
        | measured
        for i, bias in enumerate(biases)
    ]


def watched_entries(*of: tuple[float, ...]) -> list[dict[str, Any]]:
    """One entry per iteration: (steps_off, alpha), and what its correction shifts by."""
    return [
        {
            "bias": 0.2,
            "steps_off": off,
            "alpha": alpha,
            "correction_slope": 1.0,
            "correction_shift": shift[0] if shift else 0.0,
        }
        for off, alpha, *shift in of
    ]


def drift_results(**changes: Any) -> dict[str, Any]:
    far = [entry | {"kl": 0.1 * i} for i, entry in enumerate(far_entries(0.0, 0.1, 0.15, 0.2, 0.3))]
    watched = watched_entries((0.0, 0.5), (0.0, 0.5, -0.4), (0.0, 0.5, -0.4))
    held = {"stale": {"caught": True}, "foreign": {"caught": True}, "fresh": {"caught": False}}
    return {"arms": {"far": far, "watched": watched} | changes, "held": held | changes}


@pytest.mark.parametrize(
    ("changes", "criterion"),
    [
        ({"far": far_entries(0.1, 0.1, 0.1, 0.1)}, "far: the level drifts by more than 10 points"),
        ({"far": far_entries(0.0, 0.5)}, "far: at least 3 paid checks"),
        ({"far": far_entries(0.0, 0.2, 0.5, alpha=1.0)}, "far: its watch only looked"),
        ({"far": far_entries(0.0, 0.2, 0.5, kl=0.1)}, "far: the KL to the starting policy grows above .1"),
        ({"far": far_entries(0.0, 0.2, 0.5, kl=None)}, "far: the KL to the starting policy grows above .1"),
        ({"watched": watched_entries((0.0, 0.5), (0.0, 0.5))}, "watched: it reacted"),
        ({"watched": watched_entries((0.0, 0.5), (1.0, 0.5), (0.0, 0.5))}, "watched: it reacted"),
        ({"watched": watched_entries((0.0, 0.5), (1.0, 0.5), (0.0, 0.5, -0.4))}, "watched: it reacted"),
        ({"watched": watched_entries((1.0, 0.5), (0.0, 0.0), (0.0, 0.5))}, "watched: it reacted"),
        ({"watched": watched_entries((1.0, 0.0), (0.0, 0.0))}, "watched: it reacted"),
        ({"stale": {"caught": False}}, "stale: caught"),
        ({"foreign": {"caught": False}}, "foreign: caught"),
        ({"fresh": {"caught": True}}, "fresh: not caught"),
    ],
)
def test_what_the_drift_must_show_fails_alone(changes: Any, criterion: str) -> None:
    assert all(judge(drift_results(), critic_drift.CRITERIA).values())
    judged = judge(drift_results(**changes), critic_drift.CRITERIA)
    assert [name for name, met in judged.items() if not met] == [criterion]


def test_refitting_what_was_found_off_takes_the_bias_away_and_one_lucky_iteration_adds_some() -> None:
    rng = np.random.default_rng(0)

    def iteration(rate: float) -> list[critic_drift.Seen]:
        return [(np.full(3, 0.3), float(rng.random() < rate), f"c{i % 60}") for i in range(600)]

    limits = Drift(max_slope=99, min_slope=0.001)  # values that are all equal have no slope
    far = [iteration(0.6) for _ in range(6)]
    as_frozen, refitted = (critic_drift.refitted_bias(far, limits, last=last, seed=0) for last in (0, 3))
    assert as_frozen == pytest.approx(0.3, abs=0.02)
    assert refitted < 0.1  # off in the first iteration, right in the five others but for chance
    lucky = [iteration(rate) for rate in (0.35, 0.35, 0.5, 0.35, 0.35)]
    one, three = (critic_drift.refitted_bias(lucky, limits, last=last, seed=0) for last in (1, 3))
    assert three < one


def test_a_reaction_is_alpha_at_0_after_a_finding_or_without_one_a_correction() -> None:
    assert critic_drift.reacted(watched_entries((0.0, 0.5), (1.0, 0.5), (0.0, 0.0), (0.0, 0.0)))
    assert critic_drift.reacted(watched_entries((0.0, 0.5, -0.4), (1.0, 0.5, -0.4)))  # the finding came last
    assert not critic_drift.reacted(watched_entries((0.0, 0.5), (1.0, 0.5)))


def test_the_far_actor_has_a_kl_that_is_measured_and_does_not_hold_it() -> None:
    assert 0 < float(critic_drift.FAR["actor.kl_coefficient"]) < 1e-4


def test_both_arms_say_what_they_do_whatever_the_configuration_says() -> None:
    """phone-l3-tiny.yaml only watches: an arm that left a reaction to it would not react."""
    reactions = ("actor.drift.recalibrate", "actor.drift.step_weight_to_zero", "actor.alpha_after_clean")
    assert {arm: tuple(of[name] for name in reactions) for arm, of in critic_drift.ARMS.items()} == {
        "far": ("false", "false", critic_drift.FAR["actor.alpha"]),
        "watched": ("true", "true", "1.0"),
    }
    assert critic_drift.FAR["actor.drift.refresh"] == "never"
