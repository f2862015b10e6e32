import json
import re
from dataclasses import replace

import numpy as np
import pytest

from critics.audit import own_start
from critics.audit.reference_critics import VISIBLE, VISIBLE_ALONE, reference_critics
from critics.audit.siblings import Siblings
from critics.logit import logit, sigmoid
from critics.report.build import SOLVER, build_report
from critics.report.page import cell, report_page
from tests.critics.conftest import make_audit
from tests.critics.test_probes import probed, where
from tests.critics.test_siblings import sets_of

OPTIONS = {
    "trained_clusters": (), "converged": True, "policy_digest": "abcdef012345" * 2, "critic_digest": "c" * 32,
    "num_resamples": 100,
}  # fmt: skip
EVALUATIONS = [
    {"update": 10 * i, "phase": "head" if i < 2 else "all", "brier": 0.2 - i / 50, "brier_se": 0.01}
    for i in range(4)
]  # fmt: skip


@pytest.fixture
def audit():
    return make_audit(lambda V, rng: V + rng.normal(0, 0.03, V.shape), num_rollouts=200)[0]


@pytest.fixture
def small(audit):
    """Too few clusters for trees, which take most of a report's time."""
    return audit.where(np.arange(len(audit)) < 288)


def failed(report) -> set[str]:
    return {c["name"] for c in report["gate"]["conditions"] if c["passed"] is False}


def test_a_whole_report_survives_json_and_makes_the_same_page_every_time(audit) -> None:
    siblings, changes = sets_of(lambda V, rng: V, num_sets=80, size=3, K=8), probed()
    options = OPTIONS | {"evaluations": EVALUATIONS, "siblings": siblings}
    options |= {"probed": where(changes, changes.kind != "split"), "fitted": audit.where(audit.level == 1)}
    report = build_report(audit, **options)
    again = json.loads(json.dumps(report, allow_nan=False))
    html = report_page(again)
    assert html == report_page(report)
    assert build_report(audit, **options) == report
    assert report["passed"]
    assert report["gate"]["not_measured"] == ["probes (split)"]
    assert html.index("PASS. This critic estimates") < html.index("<table")
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", html, flags=re.DOTALL)
    assert len(captions) == html.count("<svg") == 5 + 6
    assert all(len(caption.split(". ")) > 1 or ";" in caption for caption in captions)
    assert html.count("Its steps") == 6
    for words in (
        "say 0 &lt;b&gt;&amp;amp;",  # escaped
        "best next step named",
        "continuations (K = 4)",
        "corrupted_step (60)",
        "Not measured: probes (split).",
        "this critic on 50 tasks it was fitted on",
        "None of these clusters has a training task",
    ):
        assert words in html, words
    # A quantity has one interval wherever it is shown.
    assert report["references"][0]["ev"] == report["measures"]["bare"]["ev"]


def test_clusters_with_training_tasks_decide_nothing(audit) -> None:
    """The critic knows these by heart and is a constant elsewhere; the split table still shows them."""
    trained = sorted(set(audit.cluster.tolist()))[:13]
    known = np.isin(audit.cluster, trained)
    split = np.where(known, "val", "test")
    audit = replace(audit, p=np.where(known, np.clip(audit.v_hat, 0.02, 0.98), 0.5), split=split)
    options = OPTIONS | {"trained_clusters": trained}
    report = build_report(audit, **options)
    assert {"ev", "ev_within"} <= failed(report)
    assert report["judged"]["bare"]["splits"] == ["test"]
    assert "val" not in re.search(r"Judged on (.*?)fresh", report_page(report)).group(1)
    by_split = {row["name"]: row for row in report["slices"] if row["kind"] == "split"}
    assert by_split["val"]["ev"]["value"] > 0.9 > 0.1 > by_split["test"]["ev"]["value"]
    with pytest.raises(ValueError, match="is a bare one of a cluster without training tasks"):
        build_report(audit.where(known), **options)


def test_a_level_that_is_off_is_refitted_and_told(audit) -> None:
    low = replace(audit, p=sigmoid(logit(audit.p) - 0.35))
    report = build_report(low, **OPTIONS)
    assert report["passed"]
    measures = report["measures"]["bare"]
    assert measures["level_bias"]["high"] < -0.02
    assert abs(measures["bias"]["value"]) < 0.02
    frozen = next(row for row in report["references"] if row["name"] == "this critic, level as frozen")
    fitted = build_report(low, fitted=low, **OPTIONS)["references"][-1]  # the same states: the same figures
    assert "it was fitted on" in fitted["name"]
    assert fitted["ece_excess"] == report["references"][0]["ece_excess"]
    assert frozen["ece_excess"]["low"] > measures["ece_excess"]["value"]


def test_guided_states_are_measured_but_judged_only_when_asked(small) -> None:
    context = np.where(np.char.endswith(small.rollout_id, "7"), "guided", "bare").astype(str)
    guided = replace(small, context=context)
    report = build_report(guided, **OPTIONS)
    assert set(report["measures"]) == {"bare", "guided"}
    assert not any("guided" in c["name"] for c in report["gate"]["conditions"])
    judged = build_report(guided, judged_contexts=("bare", "guided"), **OPTIONS)
    assert any("guided" in c["name"] for c in judged["gate"]["conditions"])
    assert "guided states of 7 rollouts" in report_page(judged)
    absent = build_report(small, judged_contexts=("bare", "guided"), **OPTIONS)
    assert any("guided" in name for name in failed(absent))
    assert "FAIL" in report_page(absent)


def test_what_has_no_bounds_never_looks_exact(small) -> None:
    known = {"value": 0.5, "low": 0.4, "high": 0.6}
    assert cell(known) == "0.500 [0.400, 0.600]"
    assert cell(known | {"high": None}) == cell(known | {"low": float("inf")}) == "0.500 [no bounds]"
    alone = build_report(replace(small, cluster=np.full(len(small), "one")), **OPTIONS)
    html = report_page(alone)
    ev = alone["measures"]["bare"]["ev"]
    assert ev["low"] is None
    assert f">{ev['value']:.3f} [no bounds]<" in html
    assert f">{ev['value']:.3f}<" not in html
    nine = small.where(np.isin(small.cluster, sorted(set(small.cluster.tolist()))[:9]))
    few = build_report(replace(nine, rollouts=nine.rollouts[: 9 * 8]), **OPTIONS)
    drawn = [bin["observed"]["low"] for bins in few["reliability"].values() for bin in bins]
    assert set(drawn) == {few["measures"]["bare"]["none"]["low"]} == {None}
    tiny = build_report(small.where(np.arange(len(small)) < 2), **OPTIONS)
    assert tiny["passed"] is False
    assert "undefined" in report_page(json.loads(json.dumps(tiny, allow_nan=False)))


def test_the_weakest_slice_is_named_and_its_bias_is_shown() -> None:
    audit, _ = make_audit(lambda V, rng: V, num_rollouts=240)
    hopeful = replace(audit, p=np.where(audit.level == 2, np.sqrt(audit.p), audit.p))
    report = build_report(hopeful, **OPTIONS)
    assert re.search(r"Weakest: level 2, where values are \d\d points off the truth", report["opening"][0])
    biases = {row["name"]: row["bias"] for row in report["slices"] if row["kind"] == "level"}
    assert biases["2"]["low"] > 0.05 > abs(biases["1"]["value"])
    # Where nearly all succeed, a small error is more than there is to explain, and no weakness.
    alike = audit.level == 3
    k, p = np.where(alike, audit.K, audit.k), np.where(alike, 0.95, hopeful.p)
    assert "Weakest: level 2" in build_report(replace(hopeful, k=k, p=p), **OPTIONS)["opening"][0]


def test_sets_without_a_difference_are_shown_as_such(small) -> None:
    alike = Siblings.of([(f"s{i}", f"c{i}", 0.1 * j, 4, 8, 4) for i in range(30) for j in range(3)])
    report = build_report(small, siblings=alike, **OPTIONS)
    assert (report["siblings"]["num_sets"], report["siblings"]["num_telling"]) == (30, 0)
    assert "sibling_excess" in failed(report)
    assert "best next step named" not in report_page(report)
    two = build_report(small, siblings=sets_of(lambda V, rng: V, K=2), **OPTIONS)
    assert "best next step named" in report_page(two)
    assert "continuations (K = 0)" not in report_page(two)


def test_samples_are_audited_rollouts_of_a_task_each_solved_and_failed(audit) -> None:
    """Of several draws of a task only one is continued; the others have nothing to be held against."""
    continued = audit.where(np.char.endswith(audit.rollout_id.astype(str), "0"))
    shown = build_report(continued, **OPTIONS)["sample_rollouts"]
    assert [sample["reward"] for sample in shown] == [1.0] * 3 + [0.0] * 3
    assert len({sample["task_id"] for sample in shown}) == 6
    at = audit.rollout_id == shown[0]["rollout_id"]
    assert [entry[1] for entry in shown[0]["audited"]] == (audit.v_hat[at]).tolist()
    assert all(low <= value <= high for _, value, low, high in shown[0]["audited"])


def test_references_are_there_where_they_can_be() -> None:
    audit, _ = make_audit(lambda V, rng: V, K=3, num_rollouts=60)
    K = audit.K.copy()
    K[0] = 2  # short of a continuation: left out of the reference
    report = build_report(replace(audit, K=K, k=np.minimum(audit.k, K)), **OPTIONS)
    names = [row["name"] for row in report["references"]]
    assert "1 continuation" in names
    assert SOLVER not in names
    assert VISIBLE not in names  # too few clusters
    known = replace(audit, v_star=np.ones(len(audit)))
    report = build_report(known, **OPTIONS)
    assert "V* is the chance of the best play, and the policy&#39;s lies below it" in report_page(report)
    rows = {row["name"]: row for row in report["references"]}
    assert rows[own_start.NAME]["ev_within"]["value"] < rows["this critic"]["ev_within"]["value"]
    assert rows[SOLVER]["brier"]["value"] == pytest.approx(float((1 - audit.v_hat).mean()))
    assert rows[SOLVER]["ev"]["value"] < 0 < rows["this critic"]["ev"]["value"]


@pytest.mark.slow
def test_trees_find_what_the_words_show_and_what_only_verifiers_see() -> None:
    """V falls alike at a step with the word `hm`, and at one that verifiers call wrong."""
    audit, _ = make_audit(lambda V, rng: np.full(V.shape, V.mean()), num_rollouts=1200, K=8)
    rng = np.random.default_rng(1)
    said, wrong = rng.random((1200, 4)) < 0.3, rng.random((1200, 4)) < 0.3
    fallen = -1.5 * (np.cumsum(said, axis=1) + np.cumsum(wrong, axis=1))
    V = sigmoid(1 + np.concatenate([np.zeros((1200, 1)), fallen[:, :-1]], axis=1))
    texts, statuses = np.where(said, "hm", "call").tolist(), np.where(wrong, "wrong", "ok").tolist()
    rollouts = tuple(
        replace(r, texts=tuple(t), statuses=tuple(s))
        for r, t, s in zip(audit.rollouts, texts, statuses, strict=True)
    )
    audit = replace(audit, k=rng.binomial(8, V).ravel(), rollouts=rollouts)
    rows = {row["name"]: row["ev_within"]["value"] for row in build_report(audit, **OPTIONS)["references"]}
    assert rows["this critic"] == pytest.approx(0, abs=0.02)
    told = rows["trees: this critic, what is visible, the verdicts so far"]
    assert told > 0.9
    assert 0.3 < rows["errors_so_far"] < told - 0.1
    assert 0.3 < rows[VISIBLE] < told - 0.1
    report = build_report(audit, **OPTIONS, privileged="features")
    of_told = {row["name"]: row["ev_within"]["value"] for row in report["references"]}
    assert VISIBLE not in of_told
    assert of_told[VISIBLE_ALONE] == pytest.approx(rows[VISIBLE], abs=0.05)
    assert "trees on the dialogue alone explain" in report_page(report)
    assert {"skill_over_errors_so_far", "ev_within_over_errors_so_far"} <= failed(report)
    # Values of a cluster are made without its own counts.
    one = audit.cluster == "c0"
    changed = replace(audit, k=np.where(one, 8 - audit.k, audit.k))
    for name, reference in reference_critics(audit, 0).items():
        np.testing.assert_array_equal(reference.p[one], reference_critics(changed, 0)[name].p[one])
