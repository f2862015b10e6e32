"""What all drawings share: colours, how letters are set, an SVG's ids, points that lead somewhere.

No pyplot: figures are made without global state, so drawing is safe in any process.
"""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any
from xml.sax.saxutils import escape

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from pipeline.text import visible

BLUE, ORANGE, RED, GREEN, GREY = "#0b5cad", "#c2571a", "#b3261e", "#1a7f37", "#8b949e"
COLOURS = (BLUE, ORANGE, GREEN, "#7b3fa0", "#8a6d00", "#3c7d8c", RED, "#4a4a4a")
MARKERS = "osD^vPX*"
LINES = ("-", "--", ":", "-.")
"""Of series without markers, and of each further round of colours: colour alone tells none apart."""
WIDTH = 5.0
"""Inches of every drawing: as wide as a small screen, so letters keep the size that they are set in."""
_SETTINGS = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e9ed",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "text.parse_math": False,  # names of arms are whatever somebody called them
}


def draw(
    name: str, paint: Callable[[Any], None], *, size: tuple[float, float] = (WIDTH, 3.4), rows: int = 1
) -> str:
    """Returns an SVG element of what `paint` puts on its axes; `size` is in inches.

    The name keeps the ids of drawings on one page apart. With rows > 1 `paint` gets an array of axes on top
    of each other, sharing x, the first three times as high.
    """
    with matplotlib.rc_context(_SETTINGS | {"svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        ratios = [3] + [1] * (rows - 1)
        paint(figure.subplots() if rows == 1 else figure.subplots(rows, 1, sharex=True, height_ratios=ratios))
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing)
    svg = re.sub(r"^.*?(?=<svg)|<metadata>.*?</metadata>", "", file.getvalue(), flags=re.DOTALL)
    # Nothing refers to the ids of groups; the others get the drawing's name, to be unique on a page.
    svg = re.sub(r'<g id="[^"]+">', "<g>", svg)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(url\(|href=")#([^")]+)', rf"\1#{name}-\2", svg).strip()
    return re.sub(r"[^ -~\n]", lambda found: escape(visible(found[0])), svg)  # names of arms, again


def name_axis(axis: Any, label: str) -> None:
    """Names an axis of shares or else; one named in % or points is numbered in these, as tables are."""
    axis.set_label_text(label)
    if label.endswith(("(%)", "(points)")):
        axis.set_major_formatter(PercentFormatter(1, symbol=""))


def lead(axes: Any, x: np.ndarray, y: np.ndarray, links: Sequence[str]) -> None:
    """Lets each point lead to its link, if there are any."""
    if links:
        # Easier to hit than a point; with alpha 0 there would be nothing that a click can hit.
        axes.scatter(x, y, s=60, alpha=0.001, linewidths=0, zorder=9).set_urls(links)
