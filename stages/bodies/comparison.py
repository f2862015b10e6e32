"""Plays the runs of a comparison and says what they came to."""

from contextlib import closing

from pipeline.artifacts.publish import merge
from pipeline.columns import COMPARISON, SPENDING
from pipeline.errors import ArtifactError, ExitCode
from pipeline.report.comparison import MEASURES, comparison_report
from pipeline.report.comparison_page import claims_of, comparison_page
from pipeline.runner import Start
from pipeline.schema import table_of
from stages.settings import Config
from stages.wiring.arm_results import result_of
from stages.wiring.arms import ArmRun, num_side_by_side
from stages.wiring.comparison_rows import comparison_rows, spending_rows
from stages.wiring.side_by_side import Failure, SideBySide


def make(start: Start[Config], runs: list[ArmRun]) -> None:
    """Makes or finishes every run, those that failed before included; then tables, report and page.

    All are written if runs failed, too, but then the stage is not complete: raises ArtifactError.
    """
    failures = _played(start, runs)
    known = [run for run in runs if run.name not in failures or failures[run.name].kind == "refused"]
    start.say(f"reading {len(known)} runs")
    results = [result_of(run) for run in known]
    rows, spending = comparison_rows(results), spending_rows(results)
    report = comparison_report(
        rows,
        spending,
        method=start.config.comparison.method,
        threshold=start.config.comparison.threshold,
        failed={(r.arm, r.seed): failures[r.name].words for r in runs if r.name in failures},
    )
    page = comparison_page(start.run_dir.name, report)
    start.output("report.html", volatile=True).write_text(page, encoding="utf-8")
    start.report(report)
    tables = [
        (spec, table_of(spec, {name: [row[name] for row in of] for name in spec.schema.names}))
        for spec, of in ((COMPARISON, rows), (SPENDING, spending))
    ]
    for line in claims_of(report, next(iter(MEASURES))):
        start.say(line)
    if failures:
        merge(start.folder, start.shards, tables)
        reasons = "\n".join(f"  {name}: {failure.words}" for name, failure in failures.items())
        raise ArtifactError(
            f"{start.shards.counts()} runs. These came to no end:\n{reasons}\nTables, report and page are of "
            f"what is there ({start.folder}). Next: remove the cause, then the same command tries them again;"
            " a stage that is there with old settings of its arm begins again by make STAGE "
            f"CONFIG={runs[0].run_dir.parent}/RUN.yaml SET=--fresh",
            code=ExitCode.FAILED_ITEMS,
        )
    start.finish(more_tables=tables)


def _played(start: Start[Config], runs: list[ArmRun]) -> dict[str, Failure]:
    """Plays and commits the runs that have not come to their end; returns why some did not, by run."""
    index = {run.name: number for number, run in enumerate(runs)}
    left = [runs[number] for number in sorted([*start.shards.missing, *start.shards.failed])]
    failures: dict[str, Failure] = {}
    side_by_side = SideBySide(
        left,
        home=runs[0].run_dir.parent,
        slots=num_side_by_side(start.config),
        stop_if_asked=start.stop_if_asked,
        say=start.say,
    )
    with start.shards.bar(), closing(side_by_side.ended()) as ended:
        for run, failure in ended:
            if failure is not None:
                failures[run.name] = failure
                start.say(f"{run.name}: {failure.words}")
            start.shards.commit(
                index[run.name],
                {},
                done=int(failure is None),
                failed={failure.kind: 1} if failure is not None else {},
                supersede=start.shards.is_committed(index[run.name]),
            )
    return failures
