"""The critic report as a page: report.json to drawings, tables and sentences that say how to read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from critics.report.fit import fit_section, labels_section
from critics.report.parts import READINGS, cell, plots_module
from critics.report.steps import probes_section, siblings_section, steps_section
from critics.report.values import calibration_section, values_section
from pipeline.report import Dialogue, DialogueStep, Drawing, Section, Table, Text, page


def report_page(report: Mapping[str, Any], *, title: str = "Critic report") -> str:
    """Returns report.html, a pure function of `build_report`'s result."""
    return page(title, report_sections(report))


def report_sections(report: Mapping[str, Any]) -> list[Section]:
    """Returns the sections of the page: verdict first, then what supports it."""
    return [
        _verdict_section(report),
        calibration_section(report),
        values_section(report),
        steps_section(report),
        siblings_section(report),
        probes_section(report),
        fit_section(report),
        labels_section(report),
        _samples_section(report),
        _measures_section(report),
        _notes_section(report),
    ]


def _verdict_section(report: Mapping[str, Any]) -> Section:
    words = {True: "passed", False: "FAILED"}
    conditions = report["gate"]["conditions"]
    rows = tuple((c["name"], words.get(c["passed"], c["passed"]), c["asks"], c["reason"]) for c in conditions)
    judged = [
        f"{size['num_states']} {context} states of {size['num_rollouts']} rollouts, {size['num_tasks']} "
        f"tasks of {size['num_clusters']} clusters, with {size['num_continuations']} fresh continuations"
        for context in report["gate"]["contexts"]
        for size in [report["sizes"][context]]
    ]
    of_val = any((row["kind"], row["name"]) == ("split", "val") for row in report["slices"])
    basis = (
        f"Judged on {'; '.join(judged)}. It was fitted on none of these tasks"
        + ("; clusters of `val` are of the training split" if of_val else "")
        + ". Brackets are 95 % intervals from resampling clusters."
    )
    table = Table(("condition", "result", "what it asks", "what was found"), rows, "The gate")
    return Section(
        "Verdict",
        (Text(report["opening"], "pass" if report["passed"] else "fail"), table, Text(basis, "note")),
    )


def _samples_section(report: Mapping[str, Any]) -> Section:
    plots = plots_module()
    blocks: list[Any] = []
    for place, sample in enumerate(report["sample_rollouts"]):
        outcome = {None: "not graded"}.get(
            sample["reward"], "solved" if (sample["reward"] or 0) >= 0.5 else "failed"
        )
        title = f"Level {sample['level']}, {sample['split']}, {sample['context']}: {outcome}"
        svg = plots.value_path(
            f"path-{place}",
            sample["values"],
            sample["statuses"],
            reward=sample["reward"],
            audited=[tuple(entry) for entry in sample["audited"]],
        )
        caption = (
            f"{title} (rollout {sample['rollout_id'][:12]}). The line should run through the bars of fresh "
            "continuations, and fall where the verifier marks an error."
        )
        blocks.append(Drawing(svg, caption))
        steps = zip(sample["texts"], sample["values"], sample["statuses"], sample["messages"], strict=True)
        blocks.append(Dialogue("Its steps", tuple(DialogueStep(*step) for step in steps)))
    if not blocks:
        blocks = [Text("None were asked for.", "note")]
    return Section("Rollouts with their values", tuple(blocks))


def _measures_section(report: Mapping[str, Any]) -> Section:
    contexts = [context for context in report["measures"] if report["sizes"][context]["num_states"]]
    rows = tuple(
        (name, *(cell(report["measures"][context][name]) for context in contexts), READINGS.get(name, ""))
        for name in report["measures"]["bare"]
    )
    caption = "Debiased for the finite number of continuations where a reading does not say otherwise."
    return Section("All measures", (Table(("measure", *contexts, "reading"), rows, caption),))


def _notes_section(report: Mapping[str, Any]) -> Section:
    notes: list[Text | Table] = [
        Text(
            f"Values estimate the chance of success of policy {report['policy_digest']} and no other; critic "
            f"{report['critic_digest']}. A pass holds for that policy, its token "
            "budget and these families only."
        ),
        Text(
            "How it fares while the actor moves away from that policy is measured in the actor's stage.",
            "note",
        ),
    ]
    return Section("What it is, and is not", tuple(notes))
