"""From a point of a report to the rollouts behind it, as a person would: a click in a real browser."""

import threading
from collections import defaultdict
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from benchmarks._browser import NAMES, Browser, executable
from pipeline.view.run import Run
from pipeline.view.server import make_server
from tests.stages.conftest import Lab


@pytest.mark.slow
@pytest.mark.skipif(executable() is None, reason=f"no browser on PATH: {', '.join(NAMES)}")
def test_a_point_of_the_critic_s_report_leads_to_the_rollouts_with_such_values(
    chain: Lab, tmp_path: Path
) -> None:
    server = make_server(Run(chain.run_dir))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with Browser(tmp_path) as browser:
            browser.open(f"http://127.0.0.1:{server.server_port}/critic_report/report.html", shows="svg a")
            browser.open(browser.click("svg a"))
            asked = parse_qs(browser.value("location.hash").removeprefix("#"))
            listed = browser.value("[...document.querySelectorAll('#rows .text')].map(node => node.title)")
            assert not browser.errors
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    low, high = (float(asked[name][0]) for name in ("low", "high"))
    values = defaultdict[str, list[float]](list)
    for row in chain.artifact("critic_report").table("values").to_pylist():
        values[row["rollout_id"]].append(row["value"])
    whole = [r.rollout_id for r in chain.rollouts("critic_report") if r.kind == "whole"]
    expected = {name for name in whole if any(low <= value < high for value in values[name])}
    assert set(listed) == expected
    assert 0 < len(listed) < len(whole)
