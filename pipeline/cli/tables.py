"""Tables for a terminal of any width: nothing in them is ever cut."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table
from rich.text import Text


def texts_table(names: Sequence[str], title: str) -> Table:
    """Returns a table of texts: what is too long for its column goes on in the next line."""
    return _table([Column(name, overflow="fold") for name in names], title)


def figures_table(first: str, figures: Sequence[str], title: str) -> Table:
    """Returns a table of figures, which stay whole, by names, which fold where the screen is narrow."""
    columns = [Column(name, justify="right", no_wrap=True) for name in figures]
    return _table([Column(first, overflow="fold"), *columns], title)


def _table(columns: Sequence[Column], title: str) -> Table:
    return Table(
        *columns,
        title=Text(title),  # no markup
        title_justify="left",
        box=SIMPLE_HEAD,  # lines between columns would take the room of names
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
