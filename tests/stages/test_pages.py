"""The pictures on a run's summary and on its actor's page say what their reports say."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.errors import ArtifactError
from pipeline.report import Drawing, plots
from pipeline.report.comparison import comparison_report
from stages import summary as command
from stages.wiring import actor_others
from stages.wiring.actor_curves import learning_curve, spent_curve
from stages.wiring.actor_report import actor_page, actor_report
from stages.wiring.pages import events_section
from stages.wiring.summary_drawings import budget_section, opponents_section, success_section
from tests.pipeline.report.test_comparison import tables

SUMMARY = {
    "budget": {
        "by_stage": {
            "rollouts": {"rollouts": 300, "tokens": 3000},
            "critic_report": {"rollouts": 100, "tokens": 1000},
            "actor": {"rollouts": 600, "tokens": 16000},
        }
    },
    "minutes_by_stage": {
        "tasks": 0.0,
        "rollouts": 1.0,
        "critic_report": 1.0,
        "actor": 6.0,
        "evaluation": 2.0,
    },
}


def texts_of(drawing: Drawing) -> list[str]:
    root = ET.fromstring(drawing.svg)
    return [(e.text or "").strip() for e in root.iter("{http://www.w3.org/2000/svg}text")]


def interval(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.1, "high": value + 0.1}


def measures(*slices: str) -> dict[str, Any]:
    one = {"tasks": 4, "start": interval(0.2), "actor": interval(0.5)}
    return {
        measure: dict.fromkeys(("all", *slices), one) for measure in ("first_try", "greedy", "with_feedback")
    }


def test_what_changed_most_on_first_tries_stands_first() -> None:
    of_start = {"start": interval(0.2), "tasks": 4}
    events = {
        "form": {**of_start, "actor": interval(0.25), "gain": interval(0.05)},
        "probe": {**of_start, "actor": interval(0.1), "gain": interval(-0.1)},
        "found": {"start": dict.fromkeys(("value", "low", "high")), "actor": interval(0.3), "tasks": 0}
        | {"gain": dict.fromkeys(("value", "low", "high"))},
    }
    (table,) = events_section(events).blocks
    assert table.rows == (
        ("probe", "20.0", "10.0", "-10.0", "[-20.0, 0.0]"),
        ("form", "20.0", "25.0", "+5.0", "[-5.0, 15.0]"),
        ("found", "-", "30.0", "-", "no bounds"),
    )


def test_the_budget_is_drawn_in_shares_and_told_in_figures() -> None:
    drawing, table = budget_section(SUMMARY).blocks
    words = texts_of(drawing)
    for row in (
        ["30%", "10%", "60%"],
        ["15%", "80%"],
        ["10%", "60%", "20%"],
    ):  # 5 % have no room for a figure
        assert all(share in words for share in row)
    assert {"rollouts", "critic_report", "actor", "evaluation"} <= set(words)
    assert "tasks" not in words  # it took no time to be seen
    assert words.count("actor") == 1
    assert ("critic_report", "100", "1,000", "1.0") in table.rows
    assert ("evaluation", "", "", "2.0") in table.rows


def test_shares_of_nothing_are_no_drawing_and_more_parts_than_colours_are_told_apart() -> None:
    assert plots.shares("n", {"rollouts": {"a": 0.0}}) == ""
    many = plots.shares("n", {"rollouts": {f"stage {i}": 1.0 for i in range(10)}})
    assert many.count("<pattern") >= 1  # the ninth part is hatched
    assert plots.shares("n", {"rollouts": {"a": 1.0}}).count("<pattern") == 0


def test_success_is_shown_by_level_and_split_where_there_are_tasks() -> None:
    found = measures("val", "test_unseen_company", "level 1", "level 2")
    found["first_try"]["level 2"] = {**found["first_try"]["level 2"], "tasks": 0}
    levels, feedback = success_section(found).blocks
    for drawing, series in (
        (levels, ("starting policy", "actor")),
        (feedback, ("first try", "with feedback")),
    ):
        words = texts_of(drawing)
        assert {"val", "test unseen company", "level 1", *series} <= set(words)
        assert "all" not in words
    higher = measures("val")
    higher["with_feedback"]["val"] = {**higher["with_feedback"]["val"], "actor": interval(0.8)}
    before, after = (success_section(of).blocks for of in (measures("val"), higher))
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_a_compared_value_without_bounds_is_hollow_and_a_row_may_lack_a_series() -> None:
    known = {"one": {"a": interval(0.3), "b": interval(0.5)}, "two": {"a": interval(0.4)}}
    bare = {**known, "two": {"a": {"value": 0.4, "low": None, "high": None}}}
    first, second = (plots.compared("c", rows, x_label="x") for rows in (known, bare))
    assert first != second
    assert "fill: none" in second.replace("fill:none", "fill: none")
    assert plots.compared("c", {}, x_label="x") == ""


def learned() -> dict[str, Any]:
    history = [
        {"iteration": i, "rollouts/count": 100.0, "continuations/count": 20.0 * (i == 1)} for i in range(3)
    ]
    history[0]["val/first_try"], history[2]["val/first_try"] = 0.1, 0.3
    return actor_report(history, 3, last_look={"val/first_try": 0.6})


def test_an_actors_curves_end_with_the_finished_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(plots, "curves", lambda name, entries, *_, **__: drawn.update({name: entries}) or "")
    report = learned()
    assert report["last_look"] == {"iteration": 3, "val": 0.6}
    learning_curve(report)
    spent_curve(report)
    assert [entry.get("val") for entry in drawn["learning"]] == [0.1, None, 0.3, 0.6]
    spent = [(entry["rollouts sampled before"], entry["val"]) for entry in drawn["spent"]]
    assert spent == [(0, 0.1), (100, None), (220, 0.3), (320, 0.6)]


def test_curves_of_learning_are_named_in_words() -> None:
    rates = {"rollouts/first_try": 0.2, "rollouts/with_feedback": 0.6, "rollouts/count": 9.0}
    drawing = learning_curve(actor_report([{"iteration": i, **rates} for i in range(2)], 2))
    assert {"first tries to train on", "attempts after feedback"} <= set(texts_of(drawing))


def test_an_actor_without_a_critic_has_its_curves_too() -> None:
    html = actor_page(json.loads(json.dumps(learned())))
    assert html.count("<svg") == 2
    assert "nothing to watch" in html
    older = {name: value for name, value in learned().items() if name != "last_look"}
    assert actor_page(older).count("<svg") == 2  # of a run that was made before there was a last look


def test_an_actor_is_drawn_beside_those_that_began_as_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(run: str, mode: str, sft: str = "s", seed: int = 0) -> SimpleNamespace:
        (folder := tmp_path / run / "actor").mkdir(parents=True)
        settings = {"run": {"seed": seed}, "actor": {"credit": {"mode": mode}, "evaluate_tasks": 9}}
        manifest = {"settings": settings, "inputs": {"tasks": "t", "sft": sft, "stored": mode}}
        return SimpleNamespace(manifest=manifest, folder=folder, report=learned())

    own, bare = ("mine", "v_dapo"), ("bare", "decoupled_clip")
    others = (("another-start", "grpo", "x"), ("another-seed", "grpo", "s", 1))
    runs = {of[0]: made(*of) for of in (own, bare, *others)}  # type: ignore[arg-type]
    (tmp_path / "unfinished" / "actor").mkdir(parents=True)

    def opened(run_dir: Path, stage: str) -> Any:
        if run_dir.name not in runs:
            raise ArtifactError("not complete")
        return runs[run_dir.name]

    monkeypatch.setattr(actor_others.Artifact, "open", opened)
    inputs: Any = {name: SimpleNamespace(content_digest=name[0]) for name in ("tasks", "sft", "stored")}
    found = actor_others.others_of(tmp_path / "mine", inputs, 0, 9)
    assert list(found) == ["decoupled_clip (bare)"]
    assert not actor_others.others_of(tmp_path / "mine", inputs, 0, 8)
    assert not actor_others.others_of(tmp_path / "no" / "folder", inputs, 0, 9)
    drawing = spent_curve(learned(), found)
    assert {"val", "decoupled_clip (bare)"} <= set(texts_of(drawing))
    assert "beside this one" in drawing.caption


def test_opponents_are_those_of_the_comparison_in_the_run() -> None:
    rows, spending = tables()
    report = comparison_report(rows, spending, method="ours", threshold=0.5, failed={})
    drawing, claim = opponents_section(report).blocks
    assert texts_of(drawing).index("ours") < texts_of(drawing).index("theirs")
    assert "at 900 rollouts" in drawing.caption
    assert claim.text.startswith("ours against theirs, 4 seeds: +30.")


def test_the_summary_shows_a_comparison_that_is_there(
    chain: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, spending = tables()
    report = comparison_report(rows, spending, method="ours", threshold=0.5, failed={})
    lab = chain.copy(tmp_path / "lab", *(path.name for path in chain.run_dir.iterdir() if path.is_dir()))
    assert lab.start("summary") == 0
    page = lab.run_dir / "summary.html"
    html = page.read_text()
    for title in ("By level and split", "How it was learned", "Where the budget went", "Critic"):
        assert f"<h2>{title}</h2>" in html
    assert "Against opponents" not in html
    with open("/dev/full", "w") as full:  # as behind `| head`
        shown = [sys.executable, "-m", "stages.summary", lab.config]
        assert subprocess.run(shown, cwd=Path(__file__).parents[2], stdout=full).returncode == 0
    real = command.Artifact.open

    def opened(run_dir: Any, stage: str) -> Any:
        return type("Made", (), {"report": report}) if stage == "comparison" else real(run_dir, stage)

    monkeypatch.setattr(
        command, "read_manifest", lambda folder: {} if folder.name != "comparison" else {"a": 1}
    )
    monkeypatch.setattr(command.Artifact, "open", opened)
    assert lab.start("summary") == 0
    assert "<h2>Against opponents</h2>" in page.read_text()
