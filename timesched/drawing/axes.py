"""Lines on the axes of matplotlib, which the extra `plot` installs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timesched.drawing.lines import NAMES, Line, marks_of, number
from timesched.drawing.svg import COLOURS

SIZE = (7.0, 2.8)  # inches


def draw(lines: Sequence[Line], ax: Any = None, **style: Any) -> Any:
    """Draw lines and their marks on `ax`, or on new axes of pyplot, and return the axes.

    `style`: more arguments of `Axes.plot`. Raises `ImportError` without matplotlib.
    """
    if ax is None:
        try:
            from matplotlib import pyplot
        except ImportError:
            raise ImportError("A plot needs matplotlib: pip install 'torch-timesched[plot]'.") from None
        _, ax = pyplot.subplots(figsize=SIZE, layout="constrained")
    first = len(ax.get_legend_handles_labels()[1])  # without marks
    for i, line in enumerate(lines):
        ax.plot(line.x, line.y, **{"label": line.label, "color": COLOURS[(first + i) % len(COLOURS)], **style})
    for name, x in marks_of(lines):
        _mark(ax, name, x)
    ax.xaxis.set_major_formatter(lambda x, _: number(x))  # 5e9 at the mark itself, no factor beside the axis
    ax.set_xlabel(NAMES[lines[0].unit])
    if first + len(lines) > 1:
        ax.legend(frameon=False)
    ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
    ax.grid(alpha=0.2)
    return ax


def _mark(ax: Any, name: str, x: float) -> None:
    """A dotted line, and its name above the axes in one of two rows, unless it stands there or both are full."""
    ax.axvline(x, color="gray", linewidth=0.8, linestyle=":")
    low, high = ax.get_xlim()
    letter = (high - low) * 5 / ax.get_window_extent().width * ax.figure.dpi / 72  # of about 5 points
    written = [text for text in ax.texts if text.get_gid() == "mark"]
    if any(text.xy[0] == x and text.get_text() == name for text in written):
        return
    for height in (2, 12):
        row = [text for text in written if text.get_position()[1] == height]
        if all(abs(text.xy[0] - x) > letter * (len(text.get_text()) + len(name) + 2) / 2 for text in row):
            ax.annotate(
                name, (x, 1.0), (0, height), ax.get_xaxis_transform(), "offset points", gid="mark",
                ha="center", va="bottom", color="gray", size="small",
            )  # fmt: skip
            return


def save(lines: Sequence[Line], path: str) -> None:
    """Write a picture to a file, in the format that its name ends with. Raises `ImportError` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(f"Writing {path} needs matplotlib: pip install 'torch-timesched[plot]'.") from None
    figure = Figure(figsize=SIZE, layout="constrained")  # without pyplot, and so without a window system
    draw(lines, figure.add_subplot())
    figure.savefig(path, dpi=150)
