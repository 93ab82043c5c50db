"""The style of all pictures on the site: colours, letters, lines, and ticks such as 5B."""

from __future__ import annotations

import io
import re
from html import escape
from typing import Any

from timesched.drawing.svg import COLOURS

INK = "#767676"  # of text in a file: its contrast is above 4 on white and on a dark background; see `for_page`
LR_LABEL = "learning rate / peak"
STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 12,
    "axes.labelsize": 12,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": INK,
    "grid.alpha": 0.2,
    "grid.linewidth": 0.8,
    "lines.linewidth": 2.0,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


def style(salt: str) -> Any:
    """The settings of matplotlib for one picture. `salt`: makes its ids differ from the ids of other pictures."""
    from cycler import cycler  # comes with matplotlib

    return {**STYLE, "svg.hashsalt": salt, "axes.prop_cycle": cycler(color=COLOURS)}


def format_count(value: float, _position: int = 0) -> str:
    """A count on an axis: 5000000000 is "5B"."""
    for factor, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= factor:
            return f"{value / factor:g}{letter}"
    return f"{value:g}"


def as_svg(figure: Any) -> str:
    """A figure as the text of an SVG file, which is the same in each run."""
    file = io.StringIO()
    no_date = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=no_date)
    return re.sub(r" +\n", "\n", file.getvalue())


def for_page(svg: str, label: str) -> str:
    """The picture of an SVG file as part of a page: as wide as the page allows, in the colour of its text."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)  # would hold for the whole page
    svg = re.sub(r"<metadata.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg)
    svg = svg.replace(INK, "currentColor").replace("#808080", "currentColor")  # matplotlib's "gray"
    svg = re.sub(r'(<svg [^>]*?)width="[\d.]+pt"', rf'\1role="img" aria-label="{escape(label)}"', svg, count=1)
    return re.sub(r'(<svg [^>]*?)height="[\d.]+pt"', r"\1", svg, count=1)
