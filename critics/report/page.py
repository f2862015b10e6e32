"""The critic report as a page: the verdict, then each of `SECTIONS`, then rollouts to look at."""

from collections.abc import Mapping
from typing import Any

from critics.report.sections import SECTIONS, Part, cell
from pipeline.report import (
    Block,
    Dialogue,
    DialogueStep,
    Drawing,
    Section,
    Table,
    Text,
    Tiles,
    page,
    plots,
)
from pipeline.report.page import Tone


def report_page(report: Mapping[str, Any], *, title: str = "Critic report") -> str:
    """Returns report.html, a pure function of `build_report`'s result."""
    parts = [_section(part, report) for part in SECTIONS]
    limits = (
        f"Values estimate the chance of success of policy {report['policy_digest']} and no other; critic "
        f"{report['critic_digest']}. A pass holds for that policy, its token budget and these families "
        "only. How the critic fares while the actor moves away from that policy is measured in the actor's "
        "stage."
    )
    last = Section("What it is, and is not", (Text(limits),))
    return page(title, [_verdict(report), *parts, _samples(report), last])


def _verdict(report: Mapping[str, Any]) -> Section:
    tones: dict[bool | str, Tone] = {True: "pass", False: "fail"}
    marks = {True: "passed", False: "FAILED"}
    conditions = sorted(report["gate"]["conditions"], key=lambda c: c["passed"] is not False)  # failed first
    judged = [
        f"{size['num_states']} {context} states of {size['num_rollouts']} rollouts, {size['num_tasks']} "
        f"tasks of {size['num_clusters']} clusters ({', '.join(size['splits']) or 'no split'}), with "
        f"{size['num_continuations']} fresh continuations"
        for context in report["gate"]["contexts"]
        for size in [report["judged"][context]]
    ]
    basis = (
        f"Judged on {'; '.join(judged)}. None of these clusters has a training task. The level of the "
        "values was refitted on other clusters than the judged one (five folds). Brackets are 95 % "
        "intervals from resampling clusters."
    )
    table = Table(
        ("result", "what is asked", "what was found", "condition"),
        tuple((marks.get(c["passed"], c["passed"]), c["asks"], c["reason"], c["name"]) for c in conditions),
        "The gate",
        tuple(tones.get(c["passed"], "plain") for c in conditions),
    )
    opening = Text(report["opening"][0], "pass" if report["passed"] else "fail")
    tiles = Tiles(tuple((figure, words) for figure, words in report["findings"]))
    return Section("Verdict", (opening, tiles, table, Text(basis, "note")))


def _section(part: Part, report: Mapping[str, Any]) -> Section:
    blocks: list[Block] = [
        Drawing(svg, caption) for draw, caption in part.charts.items() if (svg := draw(report))
    ]
    by_context = report["measures"]
    rows = tuple(
        (name, *(cell(of[name]) if name in of else "" for of in by_context.values()), reading)
        for name, reading in part.measures.items()
        if name in by_context["bare"]
    )
    if rows:
        blocks.append(Table(("measure", *by_context, "how to read it"), rows, part.caption))
    if not blocks and part.absent:
        blocks.append(Text(part.absent, "note"))
    blocks += [table for make in part.tables if (table := make(report)).rows]
    return Section(part.title, tuple(blocks))


def _samples(report: Mapping[str, Any]) -> Section:
    blocks: list[Block] = []
    for place, sample in enumerate(report["sample_rollouts"]):
        reward = sample["reward"]
        outcome = "not graded"
        if reward is not None:
            outcome = {1.0: "solved", 0.0: "failed"}.get(reward, f"reward {reward:g}")
        svg = plots.value_path(
            f"path-{place}",
            sample["values"],
            sample["statuses"],
            reward=reward,
            audited=[tuple(entry) for entry in sample["audited"]],
        )
        caption = (
            f"Level {sample['level']}, {sample['split']}, {sample['context']}: {outcome} (rollout "
            f"{sample['rollout_id'][:12]}). The line should run through the bars of fresh "
            "continuations, and fall where the verifier marks an error."
        )
        steps = zip(sample["texts"], sample["values"], sample["statuses"], sample["messages"], strict=True)
        dialogue = Dialogue("Its steps", tuple(DialogueStep(*step) for step in steps))
        blocks += [Drawing(svg, caption), dialogue]
    return Section("Rollouts with their values", tuple(blocks))
