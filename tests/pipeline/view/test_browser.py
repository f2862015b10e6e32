"""The page in a real headless browser: what is seen, pressed and linked."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks._browser import NAMES, Browser, executable
from pipeline.view.run import Run
from pipeline.view.server import make_server
from stages.command import main
from tests.pipeline.view.conftest import SHOWN

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(executable() is None, reason=f"no browser on PATH: {', '.join(NAMES)}"),
]
TEXT = "document.querySelector({!r}).innerText"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="module", params=["server", "one page"])
def page(
    request: pytest.FixtureRequest, run_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of the page, from a server or as a file that needs none."""
    if request.param == "one page":
        out = tmp_path_factory.mktemp("page") / "view.html"
        assert main(["view", str(run_dir), "--out", str(out)]) == 0
        yield out.as_uri()
        return
    server = make_server(Run(run_dir))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/view.html"
    server.shutdown()
    thread.join()
    server.server_close()


def listed(browser: Browser) -> list[str]:
    """Returns the rollouts in the list, by the titles of their rows."""
    return browser.value("[...document.querySelectorAll('#rows .text')].map(node => node.title)")


def test_filters_search_and_order_choose_what_is_listed(browser: Browser, page: str) -> None:
    browser.open(page)
    assert listed(browser) == ["aa00", "aa01", "bb00", "bb01"]
    assert browser.value(TEXT.format("#summary")).startswith("4 of 4 rollouts, mean reward 48 %")
    for address, expected in {
        "stage=rollouts&outcome=success": ["aa01"],
        "stage=rollouts&outcome=not+graded": ["bb00"],
        "stage=rollouts&level=2&outcome=partial": ["bb01"],
        "stage=rollouts&split=train&attempt=0": ["aa00"],
        "stage=rollouts&guided=yes": ["aa01"],
        "stage=rollouts&iteration=1": ["bb00", "bb01"],
        "stage=rollouts&verifier=no+wrong+step": ["aa01"],
        "stage=rollouts&q=asked+TWICE": ["aa01"],
        "stage=rollouts&sort=reward": ["aa00", "bb01", "aa01", "bb00"],
        "stage=actor": ["dd00", "dd01"],
        "stage=actor&low=0.1&high=0.2": ["dd00"],
        "stage=actor&sort=surprise": ["dd00", "dd01"],
        "stage=labels&kind=continuation": ["cc00", "cc01"],
    }.items():
        browser.go(address)
        assert listed(browser) == expected, address
    assert not browser.errors


def test_a_facet_counts_what_its_own_choice_leaves_out(browser: Browser, page: str) -> None:
    browser.open(f"{page}#stage=rollouts&outcome=failure")
    facets = browser.value("[...document.querySelectorAll('.facet')].map(node => node.innerText)")
    [outcome] = [text for text in facets if text.startswith("outcome")]
    assert all(f"{name} 1 ·" in " ".join(outcome.split()) for name in ("success", "partial", "failure"))
    assert not [text for text in facets if text.startswith(("level", "kind"))]  # one value only
    browser.value("document.querySelector('.chip[aria-pressed=true]').click()")
    browser.value("new Promise(go => setTimeout(go, 300))")
    assert len(listed(browser)) == 4


def test_a_rollout_has_steps_marks_a_curve_and_what_it_was_told(browser: Browser, page: str) -> None:
    browser.open(f"{page}#id=dd00")
    assert browser.value(TEXT.format("#stages [aria-current]")).startswith("actor")
    assert browser.value("document.querySelectorAll('svg circle').length") == 3
    assert browser.value("[...document.querySelectorAll('.step')].map(node => node.className)") == [
        "step ok",
        "step wrong",
        "step unknown",
    ]
    assert "V 75 %" in browser.value(TEXT.format(".step"))
    browser.go("stage=rollouts&id=aa00")
    assert browser.value("document.querySelectorAll('svg .measured').length") == 1
    assert browser.value("document.querySelectorAll('svg .label').length") == 1
    browser.go("stage=rollouts&id=aa01")
    assert f"you asked twice {SHOWN}" in browser.value(TEXT.format(".told"))
    browser.go("stage=rollouts&id=aa01&view=attempts")
    assert browser.value("document.querySelectorAll('.columns > .one').length") == 2
    browser.go("stage=rollouts&id=aa00&tokens=1")
    titles = browser.value("[...document.querySelectorAll('.token')].map(node => node.title)")
    assert titles[0].startswith("log-probability -0.500, p = 61 %")
    browser.go("stage=labels&id=cc00")
    before = browser.value("[...document.querySelectorAll('.message.before')].map(node => node.innerText)")
    assert len(before) == 2  # a message, and the beginning of the next one
    assert before[1].split("\n") == ["before this rollout began", "second"]
    browser.go("stage=rollouts&id=aa01")
    assert browser.value(TEXT.format(".one h2")).startswith("✓success")
    assert not browser.errors


def test_hostile_texts_are_seen_as_texts_and_do_nothing(browser: Browser, page: str) -> None:
    browser.open(f"{page}#stage=rollouts&id=aa00")
    assert browser.value("document.title") == "Rollouts of r"
    assert browser.value("document.querySelectorAll('img, #rollout script').length") == 0
    seen = browser.value(TEXT.format("#rollout"))
    assert seen.count(SHOWN) >= 4
    assert not set(seen) & set("\x1b\u202e\u200b\U000e0041")
    with pytest.raises(RuntimeError, match="TrustedHTML"):
        browser.value("document.querySelector('#rollout').innerHTML = '<b>markup</b>'")
    assert browser.value("fetch('https://example.com').then(() => 'read', () => 'refused')") == "refused"
    browser.errors.clear()  # of these two attempts


def test_keys_go_through_the_list(browser: Browser, page: str) -> None:
    browser.open(f"{page}#stage=rollouts")
    for key, expected in (("j", "aa00"), ("j", "aa01"), ("k", "aa00")):
        browser.press(key)
        assert f"id={expected}" in browser.value("location.hash")
    browser.press("g")
    assert "view=attempts" in browser.value("location.hash")
    browser.press("t")
    assert "tokens=1" in browser.value("location.hash")
    browser.press("Escape")
    assert "view" not in browser.value("location.hash")
    assert not browser.errors


def test_rollouts_of_one_task_are_told_apart_by_attempt_and_draw(browser: Browser, page: str) -> None:
    browser.open(f"{page}#stage=rollouts")
    rows = browser.value("[...document.querySelectorAll('#rows li')].map(node => node.innerText)")
    told = ("attempt 0, draw 0", "attempt 1, draw 0, guided", "attempt 0, draw 0", "attempt 0, draw 1")
    assert all(words in row for words, row in zip(told, rows, strict=True))


def test_on_a_phone_a_tap_leads_to_the_rollout_and_back_and_nothing_is_wider(
    tmp_path: Path, page: str
) -> None:
    with Browser(tmp_path, (360, 740)) as phone:
        phone.open(f"{page}#stage=actor")
        top = "document.querySelector({!r}).getBoundingClientRect().top"
        assert phone.value(top.format("#rollout")) > 300
        phone.value("document.querySelector('#rows li').click()")
        phone.value("new Promise(go => setTimeout(go, 500))")
        assert abs(phone.value(top.format("#rollout"))) < 2
        assert phone.value("document.documentElement.scrollWidth") <= 360
        phone.value("history.back()")
        phone.value("new Promise(go => setTimeout(go, 500))")
        assert abs(phone.value(top.format("#list"))) < 2


def test_an_unknown_rollout_is_said_and_the_page_goes_on(browser: Browser, page: str) -> None:
    browser.open(f"{page}#id=nobody")
    assert "no rollout" in browser.value(TEXT.format("#rollout"))
    browser.go("stage=rollouts")
    assert len(listed(browser)) == 4
    browser.errors.clear()
