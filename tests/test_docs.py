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
def test_files_links_and_headings_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    rooms = "pipeline|critics|env|stages|configs|tests|benchmarks|docs"
    named = {ROOT / name for name in re.findall(rf"`((?:{rooms})/[\w/.-]+)`", text)}
    for name, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([\w-]+))?[^)]*\)", text):
        if "://" in name:
            continue
        target = page.parent / name if name else page
        named.add(target)
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{name}#{anchor}"
    assert sorted(str(path) for path in named if not path.exists()) == []


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
