"""Pages keep to their size, and what they name exists."""

import re
from pathlib import Path

import pytest

from pipeline.cli.dictionary import dictionary

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "DESIGN.md", "CONTRIBUTING.md", "data/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
MOST_LINES = {"README.md": 220, "DESIGN.md": 300, "CONTRIBUTING.md": 60}


@pytest.mark.parametrize("name", MOST_LINES)
def test_a_page_keeps_to_its_size(name: str) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= MOST_LINES[name]


@pytest.mark.parametrize("page", [*PAGES, *DECISIONS], ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_links_of_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    rooms = "pipeline|critics|env|stages|configs|tests|benchmarks|docs"
    named = {ROOT / name for name in re.findall(rf"`((?:{rooms})/[\w/.-]+)`", text)}
    linked = {page.parent / link for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in link}
    assert sorted(str(path) for path in named | linked if not path.exists()) == []


@pytest.mark.parametrize(
    "page", [p for p in (*PAGES, *DECISIONS) if "#" in p.read_text("utf-8")], ids=lambda p: p.name
)
def test_a_link_into_a_page_finds_its_heading(page: Path) -> None:
    for name, anchor in re.findall(r"\]\(([^)#\s]*)#([\w-]+)\)", page.read_text(encoding="utf-8")):
        if "://" in name:
            continue
        text = (page.parent / name if name else page).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in slugs, f"{page.name}: {name}#{anchor}"


def test_every_decision_is_short_and_in_the_index() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    for number, path in enumerate(DECISIONS, 1):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert path.name.startswith(f"{number:04d}-")
        assert len(lines) <= 25, path.name
        assert f"[{number:04d}]({path.name}) | {lines[0].removeprefix(f'# {number:04d} ')} |" in index


def test_the_data_dictionary_is_current() -> None:
    page = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
    assert page == dictionary(), "run make results"
