from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from benchmarks import demo_seeds

GAIN = {"start": 0.3, "actor": 0.6, "gain": 0.3, "interval": [0.2, 0.4], "tasks": 200, "rollouts": 800}
SKILL = {"value": 0.3, "interval": [0.1, 0.4]}
GOOD: dict[str, Any] = {
    "seed": 0,
    "minutes": 12.0,
    "elapsed_minutes": 13.0,
    "first_try": GAIN,
    "greedy": {**GAIN, "start": 0.5, "actor": 0.7, "gain": 0.2},
    "with_feedback": GAIN,
    "unseen_companies": {**GAIN, "rollouts": 400},
    "critic": {**dict.fromkeys(demo_seeds.SKILLS, SKILL), "gate": "PASS"},
    "budget": {"tokens": 1_000_000, "rollouts": 12_000, "updates": 40},
}


def with_value(path: str, value: Any) -> dict[str, Any]:
    summary = copy.deepcopy(GOOD)
    *parents, name = path.split("/")
    place: Any = summary
    for parent in parents:
        place = place[parent]
    place[name] = value
    return summary


def results_of(*summaries: dict[str, Any]) -> dict[str, Any]:
    seeds = [{**s, "criteria": demo_seeds.judge(s)} for s in summaries]
    return {"machine": {"cpus": 2, "torch": "2.13.0"}, "seeds": seeds}


def test_a_run_that_shows_everything_meets_every_criterion() -> None:
    assert all(demo_seeds.judge(GOOD).values())


@pytest.mark.parametrize(
    ("path", "value", "failed"),
    [
        ("first_try/start", 0.14, "start: first try in 15-45 %"),
        ("first_try/start", 0.46, "start: first try in 15-45 %"),
        ("first_try/gain", 0.199, "first try: gain >= 20 points, with an interval"),
        ("first_try/interval", [None, None], "first try: gain >= 20 points, with an interval"),
        ("greedy/start", 0.6, "greedy: start < 60 %"),
        ("greedy/gain", 0.099, "greedy: gain >= 10 points"),
        ("greedy/gain", None, "greedy: gain >= 10 points"),
        ("unseen_companies/interval", [-0.2, -0.01], "unseen companies: change not below 0"),
        ("unseen_companies/interval", [None, None], "unseen companies: change not below 0"),
        ("unseen_companies/rollouts", 399, "unseen companies: >= 400 rollouts a side"),
        ("critic/gate", "FAIL", "gate: PASS"),
        ("critic/skill_vs_constant", {**SKILL, "interval": [0.0, 0.4]}, "critic: skill vs constant > 0"),
        ("critic/skill_vs_task_rate", {**SKILL, "interval": [None, 0.4]}, "critic: skill vs task rate > 0"),
        ("critic/skill_vs_position", {**SKILL, "interval": [-0.1, 0.4]}, "critic: skill vs position > 0"),
        ("minutes", 20.1, "at most 20 minutes"),
        ("elapsed_minutes", 20.1, "at most 20 minutes"),
    ],
)
def test_each_criterion_fails_alone(path: str, value: Any, failed: str) -> None:
    judged = demo_seeds.judge(with_value(path, value))
    assert [name for name, met in judged.items() if not met] == [failed]


def test_only_the_block_between_the_markers_is_rewritten(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{demo_seeds.BEGIN}\nold\n{demo_seeds.END}\nafter\n", encoding="utf-8")
    results = results_of(GOOD, {**with_value("greedy/gain", 0.05), "seed": 1})
    for _ in range(2):  # the second time changes nothing
        demo_seeds.put_into_readme(results, readme, with_curves=False)
        text = readme.read_text(encoding="utf-8")
        assert text.startswith(f"before\n{demo_seeds.BEGIN}\n")
        assert text.endswith(f"{demo_seeds.END}\nafter\n")
        assert text.count("30.0 -> 60.0 (+30.0 [+20.0, +40.0])") == 6
        assert "1 of 2 seeds meet every criterion" in text
        assert "Not met: seed 1: greedy: gain >= 10 points." in text
        assert "old" not in text
        assert "![" not in text


def test_a_readme_without_markers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="markers"):
        demo_seeds.put_into_readme(results_of(GOOD), tmp_path / "README.md", with_curves=False)


def test_the_table_prints_a_verdict_for_each_criterion(capsys: pytest.CaptureFixture[str]) -> None:
    demo_seeds.print_table(results_of(with_value("critic/gate", "FAIL")))
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.endswith("  PASS") for line in lines) == len(demo_seeds.CRITERIA) - 1
    assert [line.split("  ")[0] for line in lines if line.endswith("  FAIL")] == [
        "critic's gate",
        "gate: PASS",
    ]


def test_the_learning_curves_are_the_page_s_first_drawing() -> None:
    assert demo_seeds.learning_curves("<p><svg a><g/></svg><svg b></svg>") == "<svg a><g/></svg>\n"
    with pytest.raises(ValueError, match="no <svg>"):
        demo_seeds.learning_curves("<p>")


def test_machine_facts_name_no_machine() -> None:
    assert set(demo_seeds.machine_facts()) == {
        "cpus",
        "architecture",
        "system",
        "python",
        "torch",
        "transformers",
    }


def test_the_readme_has_the_markers() -> None:
    text = demo_seeds.README.read_text(encoding="utf-8")
    assert text.count(demo_seeds.BEGIN) == text.count(demo_seeds.END) == 1
