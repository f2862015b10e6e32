"""One self-contained page from sections of words, figures, tables and drawings.

Everything is inline and the content security policy forbids any request, so a page can be mailed, archived
and opened years later. Text is escaped, its hidden characters are spelled out; only drawings made by
`pipeline.report.plots` enter as markup.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup

from pipeline.text import visible

Tone = Literal["plain", "pass", "fail", "note"]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; the tone decides how loud it is."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Tiles:
    """Key figures side by side: (figure, what it says)."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, already in words; `tones` colours the first cell of each row. Left out without rows."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    tones: tuple[Tone, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawing:
    """An SVG from `pipeline.report.plots` with what it says; left out where there was nothing to draw."""

    svg: str
    caption: str


@dataclass(frozen=True, slots=True)
class Dialogue:
    """The steps of a rollout, folded until asked for: text, V before it, the verifier's word and message."""

    title: str
    steps: Sequence[tuple[str, float | None, str, str]]
    link: str = ""  # to the rollout in the viewer


Block = Text | Tiles | Table | Drawing | Dialogue


@dataclass(frozen=True, slots=True)
class Section:
    """A headed part of a page."""

    title: str
    blocks: Sequence[Block]
    absent: str = ""  # said where no block has anything to show


def viewer_link(**query: str | int | float) -> str:
    """Returns the address of rollouts in the page of `vdapo view`, as seen from a stage's report.

    It holds where the viewer shows the report, and for a file beside the run's stages, `view.html`.

    Example:
        >>> viewer_link(stage="actor", iteration=3)
        '../view.html#stage=actor&iteration=3'
    """
    return f"../view.html#{urlencode(query)}"


def readings(columns: Mapping[str, Mapping[str, str]], how: Mapping[str, str], caption: str = "") -> Table:
    """Returns a table of named figures in columns, with how to read each; names without one are left out."""
    rows = tuple(
        (name, *(figures.get(name, "") for figures in columns.values()), reading)
        for name, reading in how.items()
        if any(name in figures for figures in columns.values())
    )
    return Table(("measure", *columns, "how to read it"), rows, caption)


def page(title: str, sections: Sequence[Section]) -> str:
    """Returns the page as HTML; a pure function of its arguments, without dates."""
    sections = [replace(section, blocks=_shown(section)) for section in sections]
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined, finalize=_visible
    )
    template = Path(__file__).with_suffix(".jinja").read_text(encoding="utf-8")
    return environment.from_string(template).render(title=title, sections=sections)


def _visible(value: object) -> object:
    """Returns what a template puts on the page, hidden characters of texts spelled out; drawings as made."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _shown(section: Section) -> list[Block]:
    blocks: list[Block] = [
        block
        for block in section.blocks
        if not (isinstance(block, Drawing) and not block.svg)
        and not (isinstance(block, Table) and not block.rows)
    ]
    return blocks or ([Text(section.absent, "note")] if section.absent else [])
