"""Lines on the axes of matplotlib, which the extra `plot` installs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timesched.drawing.lines import UNIT_NAMES, Line, panels, picture_marks
from timesched.drawing.svg import COLOURS
from timesched.time.units import format_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (7.0, 2.8)  # inches


def draw(lines: Sequence[Line], ax: Axes | None = None, **style: Any) -> Axes:
    """Draw lines and their marks on `ax`, or on new axes of pyplot, and return the axes.

    `style`: more arguments of `Axes.plot`. Raises `ImportError` without matplotlib.
    """
    if ax is None:
        try:
            from matplotlib import pyplot
        except ImportError:
            raise ImportError("A plot needs matplotlib. Run 'pip install matplotlib'.") from None
        _, ax = pyplot.subplots(figsize=SIZE, layout="constrained")
    from matplotlib.transforms import ScaledTranslation

    first = len(ax.get_legend_handles_labels()[1])  # without marks
    for i, line in enumerate(lines):
        ax.plot(line.x, line.y, **{"label": line.label, "color": COLOURS[(first + i) % len(COLOURS)], **style})
    for name, x in picture_marks(lines):
        _draw_mark(ax, name, x)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda x, _: format_number(x))  # 5e9 at the tick itself, no factor next to the axis
    ax.set_xlabel(UNIT_NAMES[lines[0].unit])
    quantities = dict.fromkeys(line.quantity for line in lines)
    ax.set_ylabel(", ".join("learning rate" if quantity == "lr" else quantity for quantity in quantities))
    if first + len(lines) > 1:
        below: dict[str, Any] = {}
        if ax.figure.get_layout_engine() is not None:  # which makes room for it
            low = ax.transAxes + ScaledTranslation(0, -0.5, ax.figure.dpi_scale_trans)  # inches
            below = {"loc": "upper left", "bbox_to_anchor": (0, 0), "bbox_transform": low, "borderaxespad": 0}
        ax.legend(frameon=False, **below)
    ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
    ax.grid(alpha=0.2)
    return ax


def _draw_mark(ax: Axes, name: str, x: float) -> None:
    """A dotted line, and its name above the axes in one of two rows, unless the name is there or both rows are full."""
    ax.axvline(x, color="gray", linewidth=0.8, linestyle=":")
    from matplotlib.text import Annotation

    low, high = ax.get_xlim()
    letter = (high - low) * 5 / ax.get_window_extent().width * ax.figure.dpi / 72  # of about 5 points
    written = [text for text in ax.texts if isinstance(text, Annotation) and text.get_gid() == "mark"]
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


def save(lines: Sequence[Line], path: str) -> str:
    """Write a picture to a file and return its path, with a panel for each quantity.

    The file's suffix is the format; without a suffix it is PNG. Raises `ImportError` without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(f"{path!r}: writing a picture needs matplotlib. Run 'pip install matplotlib'.") from None
    panel_lines = panels(lines)
    size = SIZE[0], SIZE[1] * len(panel_lines) + 0.2 * len(lines)  # with room for the legends
    figure = Figure(figsize=size, layout="constrained")  # without pyplot, and so without a window system
    for i, group in enumerate(panel_lines, start=1):
        draw(group, figure.add_subplot(len(panel_lines), 1, i))
    path = path if Path(path).suffix else f"{path}.png"
    figure.savefig(path, dpi=150)
    return path
