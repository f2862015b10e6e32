from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from critics.audit.probes import KINDS, Probed
from critics.audit.siblings import Siblings
from critics.report import parts
from critics.report.build import SOLVER, build_report
from critics.report.page import report_page

OPTIONS = {"policy_digest": "abcdef012345" * 2, "critic_digest": "c" * 32, "num_resamples": 200}
EVALUATIONS = [
    {
        "number": i,
        "update": 10 * i,
        "phase": "head" if i < 2 else "all",
        "brier": 0.2 - i / 50,
        "brier_se": 0.01,
        "ev_within": i / 10,
    }
    for i in range(4)
]
LABELS = {
    "base_rate": 0.5,
    "fitted": True,
    "num_by_source": {"continuation": 3, "outcome": 1},
    "audit": {
        "num_labels": 4, "guided_share": 0.25, "base_rate": 0.5, "noise_share": 0.125,
        "noise_share_one_sample": None, "num_duplicates": 1, "duplicate_share": 0.25,
        "sources": {"continuation": {"labels": 3, "samples": 24, "tokens": 1200},
                    "outcome": {"labels": 1, "samples": 1, "tokens": 99},
                    "no sample": {"labels": 0, "samples": 0, "tokens": 0}},
    },
    "codes": {
        "missing": {"num_continuations": 90, "num_tasks": 30, "recovery_rate": 0.2, "low": 0.1, "high": None,
                    "counted": True}
    },
}  # fmt: skip


@pytest.fixture
def audit(make_audit):
    return make_audit(lambda V, rng: V + rng.normal(0, 0.03, V.shape))[0]


def test_a_report_survives_json_and_makes_the_same_page(audit) -> None:
    report = build_report(audit, converged=True, evaluations=EVALUATIONS, labels_report=LABELS, **OPTIONS)
    again = json.loads(json.dumps(report, allow_nan=False))
    assert report_page(again) == report_page(report)
    assert report["passed"] is True
    assert report["gate"]["verdict"] == "PASS"
    assert (
        build_report(audit, converged=True, evaluations=EVALUATIONS, labels_report=LABELS, **OPTIONS)
        == report
    )


def test_the_baselines_table_and_the_measures_give_a_quantity_one_interval(audit) -> None:
    report = build_report(audit, converged=True, seed=5, **OPTIONS)
    (ours,) = [row for row in report["baselines"] if row["name"] == "this critic"]
    assert ours["ev"] == report["measures"]["bare"]["ev"]
    assert ours["brier"] == report["measures"]["bare"]["brier"]


def test_the_page_opens_with_the_verdict_and_shows_rollouts_escaped(audit) -> None:
    report = build_report(audit, converged=True, evaluations=EVALUATIONS, labels_report=LABELS, **OPTIONS)
    html = report_page(report)
    assert html.index("PASS. This critic estimates") < html.index("<table")
    assert html.count("Its steps") == 6
    assert "say 0 &lt;b&gt;&amp;amp;" in html
    assert "not measured" in html
    failing = report_page(build_report(audit, converged=False, **OPTIONS))
    assert 'class="fail">FAIL.' in failing


def test_samples_take_solved_and_failed_rollouts_in_turn_with_their_audited_states(audit) -> None:
    report = build_report(audit, converged=True, num_sample_rollouts=4, **OPTIONS)
    shown = report["sample_rollouts"]
    assert [sample["reward"] for sample in shown] == [1.0, 0.0, 1.0, 0.0]
    first = shown[0]
    at = audit.rollout_id == first["rollout_id"]
    assert [entry[1] for entry in first["audited"]] == (audit.v_hat[at]).tolist()
    assert all(low <= value <= high for _, value, low, high in first["audited"])


def test_guided_states_are_measured_but_judged_only_when_asked(audit) -> None:
    guided = replace(
        audit, context=np.where(np.char.endswith(audit.rollout_id, "7"), "guided", "bare").astype(str)
    )
    report = build_report(guided, converged=True, **OPTIONS)
    assert set(report["measures"]) == {"bare", "guided"}
    assert not any("guided" in c["name"] for c in report["gate"]["conditions"])
    judged = build_report(guided, converged=True, judged_contexts=("bare", "guided"), **OPTIONS)
    assert any("guided" in c["name"] for c in judged["gate"]["conditions"])


def test_a_context_that_was_asked_for_but_not_audited_fails(audit) -> None:
    report = build_report(audit, converged=True, judged_contexts=("bare", "guided"), **OPTIONS)
    assert report["passed"] is False
    assert any("guided" in reason for reason in report["gate"]["reasons"])
    assert "FAIL" in report_page(report)


def test_a_tiny_audit_fails_in_words_instead_of_crashing(audit) -> None:
    few = audit.where(np.arange(len(audit)) < 2)
    report = json.loads(json.dumps(build_report(few, converged=True, **OPTIONS), allow_nan=False))
    assert report["passed"] is False
    assert "undefined" in report_page(report)
    with pytest.raises(ValueError, match="bare"):
        build_report(replace(few, context=np.array(["guided"] * 2)), converged=True, **OPTIONS)


def test_what_has_no_bounds_never_looks_exact(audit) -> None:
    known = {"value": 0.5, "low": 0.4, "high": 0.6}
    for side in ("low", "high"):
        for nothing in (None, math.nan, math.inf):
            unknown = known | {side: nothing}
            assert parts.cell(unknown) == "0.500 [no bounds]"
            assert parts.bounded([known, unknown]) == ([0.5, 0.5], [0.4, 0.5], [0.6, 0.5])
            assert parts.named(["a", "b"], [known, unknown]) == ["a", "b (no bounds)"]
    assert parts.cell(known) == "0.500 [0.400, 0.600]"
    assert parts.named(["a"], [dict.fromkeys(known)]) == ["a"]  # an empty row

    few = audit.where(np.arange(len(audit)) < 200)
    alone = build_report(replace(few, cluster=np.full(200, "one")), converged=True, **OPTIONS)
    html = report_page(alone)
    ev = alone["measures"]["bare"]["ev"]
    assert ev["low"] is None
    assert f">{ev['value']:.3f} [no bounds]<" in html
    assert f">{ev['value']:.3f}<" not in html
    assert "(no bounds)" in html  # rows of drawings
    assert f"Without a bar, {len(alone['reliability'])} of {len(alone['reliability'])}" in html
    cell = alone["bias_by_level_and_position"][0]
    assert f"{cell['bias']['value']:+.2f}?" in html.replace("\u2212", "-")
    assert "Without a bar" not in report_page(build_report(few, converged=True, **OPTIONS))


def test_the_verdict_claims_tasks_as_new_and_not_their_clusters(audit) -> None:
    """Audited tasks of `val` are of companies whose other tasks the critic was fitted on."""
    few = audit.where(np.arange(len(audit)) < 200)
    few = replace(few, context=np.where(np.arange(200) < 40, "guided", "bare"))

    def verdict(audit, *contexts: str) -> str:
        return report_page(build_report(audit, converged=True, judged_contexts=contexts, **OPTIONS))

    assert "160 bare states of 40 rollouts, 11 tasks of 6 clusters" in verdict(few)
    both = "40 guided states of 10 rollouts, 3 tasks of 2 clusters"
    assert both not in verdict(few)
    html = verdict(few, "bare", "guided")
    assert both in html
    assert "It was fitted on none of these tasks; clusters of `val` are of the training split" in html
    unseen = replace(few, split=np.full(200, "test_unseen_company"))
    assert "clusters of `val`" not in verdict(unseen)


def test_the_weakest_slice_is_named(make_audit) -> None:
    audit, _ = make_audit(lambda V, rng: V)
    bad = audit.level == 2
    audit = replace(audit, p=np.where(bad, 0.5, audit.p))
    opening = build_report(audit, converged=True, **OPTIONS)["opening"]
    assert re.search(r"Weakest: level 2, where values are \d\d points off the truth", opening)
    # Where nearly all succeed, a small error is more than there is to explain, and no weakness.
    alike = audit.level == 3
    k, p = np.where(alike, audit.K, audit.k), np.where(alike, 0.95, audit.p)
    assert "Weakest: level 2" in build_report(replace(audit, k=k, p=p), converged=True, **OPTIONS)["opening"]


def test_curves_and_slices_find_the_level_that_is_too_hopeful(make_audit) -> None:
    audit, _ = make_audit(lambda V, rng: V, num_rollouts=240)
    high = audit.level == 3
    audit = replace(audit, p=np.where(high, np.sqrt(audit.p), audit.p))
    report = build_report(audit, converged=True, **OPTIONS)
    curves = {curve["name"]: curve for curve in report["calibration_curves"]["level"]}
    assert sum(curve["num_states"] for curve in curves.values()) == len(audit)

    def mean_gap(curve):
        return np.mean([(low + high) / 2 - value for low, high, value in curve["plateaus"]])

    assert mean_gap(curves["level 3"]) > 0.1 > 0.05 > abs(mean_gap(curves["level 1"]))
    cells = {(cell["level"], cell["position"]): cell["bias"] for cell in report["bias_by_level_and_position"]}
    assert all(bias["low"] > 0 for (level, _), bias in cells.items() if level == 3)
    assert all(abs(bias["value"]) < 0.05 for (level, _), bias in cells.items() if level == 1)
    assert [row["name"] for row in report["ev_by_level"]] == ["1", "2", "3"]


def test_every_drawing_says_how_to_read_it_and_labels_what_they_cost(make_audit) -> None:
    audit, _ = make_audit(lambda V, rng: V, num_rollouts=120)
    given = {"evaluations": EVALUATIONS, "labels_report": LABELS, "fitted": audit.where(audit.level == 1)}
    html = report_page(build_report(audit, converged=True, num_sample_rollouts=1, **given, **OPTIONS))
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", html, flags=re.DOTALL)
    assert len(captions) == html.count("<svg") == 13
    assert all(len(caption.split(". ")) > 1 or ";" in caption for caption in captions)
    for words in (
        "Bias: mean of predicted minus measured",
        "The same curve by level of the task",
        "this critic on 30 tasks it was fitted on",
        "noise share</td><td>0.125",
        "noise share one sample</td><td>undefined",
        'data-label="tokens">1,200</td><td data-label="tokens a sample">50</td>',
        "75 %",
    ):
        assert words in html, words


def test_sets_without_a_difference_are_no_sets_that_nobody_played(audit) -> None:
    alike = Siblings.of([(f"s{i}", f"c{i}", 0.1 * j, 4, 8) for i in range(30) for j in range(3)])
    played = report_page(build_report(audit, converged=True, siblings=alike, **OPTIONS))
    assert "30 sets of sibling steps were played, and in none do measured chances differ" in played
    for html in (played, report_page(build_report(audit, converged=True, **OPTIONS))):
        assert ("No sets of sibling steps were played" in html) == (html != played)


def test_the_page_draws_siblings_and_probes_and_says_what_was_fitted(audit) -> None:
    rng = np.random.default_rng(0)
    V = rng.random((80, 3))
    siblings = Siblings.of(
        [
            (f"s{i}", f"c{i}", V[i, j], int(rng.binomial(8, V[i, j])), 8)
            for i in range(len(V))
            for j in range(3)
        ]
    )
    changes = [(kind, of) for kind, of in KINDS.items() if kind != "split"]
    probed = Probed.of(
        [
            (kind, f"c{i}", 0.6, 0.6 - 0.2 * (of.expects == "fall") + 0.01 * rng.normal())
            for kind, of in changes
            for i in range(40)
        ]
    )
    fit = {"labelled_rollouts": {"fit": 3743}, "continuations": 9515, "updates": 3}
    report = build_report(
        audit,
        converged=True,
        labels_report=LABELS,
        fit_report=fit,
        siblings=siblings,
        probed=probed,
        **OPTIONS,
    )
    assert report["gate"]["not_measured"] == ["probes (split)"]
    assert report["passed"]
    html = report_page(json.loads(json.dumps(report)))
    for words in (
        "best next step named",
        "a blind choice",
        "continuations (K = 4)",
        "Of two clearly different next steps it prefers the better",
        "change of the value",
        "corrupted_step (40)",
        "Not measured: probes (split).",
        "Fitted on 3,743 rollouts with labels and 9,515 continuations of theirs",
    ):
        assert words in html, words


def test_samples_are_audited_rollouts_of_a_task_each(audit) -> None:
    """Of several draws of a task only one is continued; the others have nothing to be held against."""
    continued = replace(audit).where(np.char.endswith(audit.rollout_id.astype(str), "0"))
    shown = build_report(continued, converged=True, **OPTIONS)["sample_rollouts"]
    assert len({sample["task_id"] for sample in shown}) == len(shown) == 6
    assert all(sample["audited"] for sample in shown)


def test_a_state_short_of_a_continuation_is_left_out_of_the_reference(make_audit) -> None:
    audit, _ = make_audit(lambda V, rng: V, K=3, num_rollouts=60)
    K = audit.K.copy()
    K[0] = 2
    short = replace(audit, K=K, k=np.minimum(audit.k, K))
    names = [row["name"] for row in build_report(short, converged=True, **OPTIONS)["baselines"]]
    assert "1 continuation" in names


def test_the_solver_is_a_reference_where_it_knows_every_state(make_audit) -> None:
    audit, _ = make_audit(lambda V, rng: V, num_rollouts=120)
    names = [row["name"] for row in build_report(audit, converged=True, **OPTIONS)["baselines"]]
    assert SOLVER not in names
    known = replace(audit, v_star=np.ones(len(audit)))
    rows = {row["name"]: row for row in build_report(known, converged=True, **OPTIONS)["baselines"]}
    assert rows[SOLVER]["brier"]["value"] == pytest.approx(float((1 - audit.v_hat).mean()))
    assert rows[SOLVER]["ev"]["value"] < 0 < rows["this critic"]["ev"]["value"]


def test_the_gate_says_at_which_distance_from_the_policy_it_judged(audit) -> None:
    assert build_report(audit, converged=True, **OPTIONS)["gate"]["kl_range"] == [0.0, 0.0]
