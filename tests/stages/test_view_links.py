"""From a point of a report to the rollouts behind it, as a person would: a click in a real browser."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from benchmarks._browser import NAMES, Browser, executable
from pipeline.view.run import Run
from pipeline.view.server import make_server
from tests.stages.conftest import Lab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(executable() is None, reason=f"no browser on PATH: {', '.join(NAMES)}"),
]
Follow = Callable[[str], tuple[dict[str, str], set[str]]]


@pytest.fixture
def followed(chain: Lab, tmp_path: Path) -> Iterator[Follow]:
    """Clicks the first point of a report; returns what the viewer was asked for, and ids that it lists."""
    server = make_server(Run(chain.run_dir))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def follow(stage: str) -> tuple[dict[str, str], set[str]]:
        with Browser(tmp_path) as browser:
            browser.open(f"http://127.0.0.1:{server.server_port}/{stage}/report.html", shows="svg a")
            browser.open(browser.click("svg a"))
            asked = dict(parse_qsl(browser.value("location.hash").removeprefix("#")))
            listed = browser.value("[...document.querySelectorAll('#rows .text')].map(node => node.title)")
            assert not browser.errors
        return asked, set(listed)

    try:
        yield follow
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_point_of_the_critic_s_report_leads_to_the_rollouts_with_such_values(
    chain: Lab, followed: Follow
) -> None:
    asked, listed = followed("critic_report")
    low, high = float(asked["low"]), float(asked["high"])
    values = defaultdict[str, list[float]](list)
    for row in chain.artifact("critic_report").table("values").to_pylist():
        values[row["rollout_id"]].append(row["value"])
    whole = [r.rollout_id for r in chain.rollouts("critic_report") if r.kind == "whole"]
    assert listed == {name for name in whole if any(low <= value < high for value in values[name])}
    assert 0 < len(listed) < len(whole)


def test_a_point_of_the_actor_s_curve_leads_to_the_rollouts_of_its_iteration(
    chain: Lab, followed: Follow
) -> None:
    asked, listed = followed("actor")
    rollouts = chain.rollouts("actor")
    assert listed == {r.rollout_id for r in rollouts if r.iteration == int(asked["iteration"])}
    assert 0 < len(listed) < len(rollouts)
