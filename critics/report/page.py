"""The critic report as a page: the verdict, what was measured with how to read it, rollouts to look at."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from critics.audit.measures import SLICE_METRICS
from critics.report import sections as said
from critics.report.build import REFERENCE_METRICS
from pipeline.report import Block, Dialogue, Drawing, Section, Table, Text, Tiles, page, plots, readings
from pipeline.report.page import Tone, viewer_link
from pipeline.statistics import Interval, interval_words

Report = Mapping[str, Any]


def cell(numbers: Mapping[str, float | None], digits: int = 3) -> str:
    """Returns a figure with its interval as a cell of a table; a null is undefined."""
    known = (math.nan if (x := numbers[name]) is None else x for name in ("value", "low", "high"))
    return interval_words(Interval(*known), digits)


def report_page(report: Report) -> str:
    """Returns report.html, a pure function of `build_report`'s result."""
    columns = {
        context: {name: cell(numbers) for name, numbers in of.items()}
        for context, of in report["measures"].items()
    }
    references = {row["name"]: row for row in report["references"]}
    slices = {f"{row['kind']} {row['name']}": row for row in report["slices"]}
    limits = (
        f"Values estimate the chance of success of policy {report['policy_digest']} and no other; critic "
        f"{report['critic_digest']}. A pass holds for that policy, its token budget and these families "
        "only. How the critic fares while the actor moves away from that policy is measured in the actor's "
        f"stage. {said.PRIVILEGED[report['privileged']]}"
    )
    sections = [
        _verdict(report),
        Section(
            "Are its percentages right?",
            (
                Drawing(_reliability(report), said.RELIABILITY_CAPTION),
                readings(columns, said.PERCENTAGES, said.PERCENTAGES_CAPTION),
            ),
        ),
        Section(
            "Does it tell states apart?",
            (
                readings(columns, said.STATES),
                _table("estimate", references, REFERENCE_METRICS, said.REFERENCES_CAPTION),
                _table("slice", slices, ("num_states", "num_tasks", *SLICE_METRICS), said.SLICES_CAPTION),
            ),
        ),
        Section(
            "Does it tell steps apart?",
            (
                Drawing(_steps(report), said.CHANGES_CAPTION),
                Drawing(_siblings(report), said.SIBLINGS_CAPTION),
                readings(columns, said.STEPS),
            ),
        ),
        Section(
            "Is it fooled by form?",
            (Drawing(_probe_changes(report), said.PROBES_CAPTION), _probes(report)),
            absent="No probes were made.",
        ),
        Section(
            "Does it see the first error?", (readings(columns, said.FIRST_ERROR, said.FIRST_ERROR_CAPTION),)
        ),
        Section(
            "How was it fitted?",
            (Drawing(_fit(report), said.FIT_CAPTION),),
            absent="The fit's evaluations were not given.",
        ),
        Section("Rollouts with their values", _samples(report)),
        Section("What it is, and is not", (Text(limits),)),
    ]
    return page("Critic report", sections)


def _verdict(report: Report) -> Section:
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


def _table(first: str, rows: Mapping[str, Report], metrics: Sequence[str], caption: str) -> Table:
    """Returns a row per named part: counts as they are, figures with their intervals."""

    def words(figure: Any) -> str:
        return cell(figure, 2) if isinstance(figure, Mapping) else str(figure)

    cells = tuple((name, *(words(row[metric]) for metric in metrics)) for name, row in rows.items())
    return Table((first, *(said.TITLES[metric] for metric in metrics)), cells, caption)


def _reliability(report: Report) -> str:
    """Returns predicted against observed success, with the sizes of the bins."""
    floor = report["measures"]["bare"]["ece_floor"]["value"] or 0.0
    bins = report["reliability"]["states"]
    links = [
        viewer_link(stage="critic_report", kind="whole", low=low, high=math.nextafter(high, math.inf))
        for low, high in (of["bounds"] for of in bins)
    ]
    return plots.reliability("reliability", bins, floor=floor, rising=report["rising"], links=links)


def _steps(report: Report) -> str:
    """Returns the change of the value at a step against the measured one."""
    bins = report["reliability"]["steps"]
    if not bins:
        return ""
    names = "critic's change at a step (points)", "measured change (points)"
    return plots.reliability("changes", bins, bounds=(-1.0, 1.0), names=names, counted="steps")


def _siblings(report: Report) -> str:
    """Returns how often the best next step is named, beside chance and continuations."""
    measures, found = report["measures"]["bare"], report["siblings"]
    if not found["num_telling"]:
        return ""
    rows = {
        "a blind choice": measures["sibling_chance"],
        "this critic": measures["sibling_top1"],
    }
    if found["reference_size"]:
        rows[f"continuations (K = {found['reference_size']})"] = measures["sibling_reference"]
    return plots.points("siblings", rows, x_label="best next step named (%)", level=None)


def _probe_changes(report: Report) -> str:
    rows = {f"{row['kind']} ({row['num_states']})": row["change"] for row in report["probes"]}
    return plots.points("probes", rows, x_label="change of the value (points)") if rows else ""


def _probes(report: Report) -> Table:
    words = {True: "holds", False: "DOES NOT HOLD", None: "not measured"}
    rows = tuple(
        (r["kind"], r["means"], r["expects"], cell(_in_points(r["change"]), 1), words[r["holds"]], r["why"])
        for r in report["probes"]
    )
    return Table(("probe", "what changes", "must", "change of the value (points)", "", "looks for"), rows)


def _in_points(change: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if x is None else 100 * x for name, x in change.items()}


def _fit(report: Report) -> str:
    """Returns the held-out Brier while the critic was fitted, and from where all weights were."""
    entries = []
    for entry in report["evaluations"]:
        middle, error = entry["brier"], entry["brier_se"]
        entries.append({**entry, "brier_low": middle - error, "brier_high": middle + error})
    head = max((entry["update"] for entry in entries if entry["phase"] == "head"), default=0)
    marks = [(head, "all weights")] if head else []
    return plots.curves("fit", entries, ("brier",), x="update", y_label="held-out Brier", marks=marks)


def _samples(report: Report) -> list[Block]:
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
        link = viewer_link(stage="critic_report", id=sample["rollout_id"])
        steps = zip(sample["texts"], sample["values"], sample["statuses"], sample["messages"], strict=True)
        blocks += [Drawing(svg, caption), Dialogue("Its steps", tuple(steps), link)]
    return blocks
