"""Lines as an SVG inside of a page: for notebooks, on a light or dark background, without matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from timesched.drawing import lines as lines_module
from timesched.drawing.lines import UNIT_NAMES, Line, Source, extent, picture_marks, ticks
from timesched.time.units import format_number

# Colour-blind people can also tell these apart. The first four have a contrast above 3 on white and on black.
COLOURS = ("#2a86c4", "#cf7420", "#1f9a73", "#c2699f", "#e69f00", "#56b4e9")
_WIDTH, _HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 20, 40


def notebook_html(shown: object, sources: Callable[[], list[Source]], run: str = "") -> str:
    """The HTML of an object in a notebook: its `repr`, a picture and the length of the run, or the error."""
    try:
        pictured = sources()
        lines = [lines_module.line(source) for source in pictured]
        picture = "".join(map(svg, lines_module.panels(lines)))
        caption = f"on a run of {pictured[0].horizon.max_duration}{run}"
    except (TypeError, ValueError) as error:
        picture, caption = "", f"no picture: {error}"
    return f"<code>{escape(repr(shown))}</code>{picture}<div>{escape(caption)}</div>"


def svg(lines: Sequence[Line]) -> str:
    """A picture of several lines over one axis."""
    end, low, high = extent(lines)

    def across(x: float) -> float:
        return round(_LEFT + x / end * (_WIDTH - _LEFT - _RIGHT), 2)

    def up(y: float) -> float:
        return round(_HEIGHT - _BOTTOM - (y - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM), 2)

    bottom = _HEIGHT - _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'style="max-width:{_WIDTH}px;width:100%" font-family="sans-serif" font-size="11" fill="currentColor">',
        f"<title>{escape(', '.join(line.label for line in lines))}</title>",
    ]

    def draw(path: str, style: str = "") -> None:
        parts.append(f'<path d="{path}" stroke="currentColor"{style}/>')

    def write(text: str, x: float, y: float, style: str) -> None:
        parts.append(f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>')

    for y in ticks(low, high, 5):
        draw(f"M{_LEFT} {up(y)}H{_WIDTH - _RIGHT}", ' stroke-opacity=".15"')
        write(format_number(y), _LEFT - 6, up(y) + 4, 'text-anchor="end"')
    for x in ticks(0.0, end):
        draw(f"M{across(x)} {bottom}v4")
        write(format_number(x), across(x), bottom + 16, 'text-anchor="middle"')
    draw(f"M{_LEFT} {bottom}H{_WIDTH - _RIGHT}")
    write(UNIT_NAMES[lines[0].unit], (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, 'text-anchor="middle"')
    last_name_at = -1000.0
    for name, x in picture_marks(lines):
        at = across(x)
        draw(f"M{at} {_TOP}V{bottom}", ' stroke-opacity=".5" stroke-dasharray="3 3"')
        if at - last_name_at > 7 * len(name):
            anchor = "middle" if at < _WIDTH - 40 else "end"
            write(name, at, _TOP - 6, f'text-anchor="{anchor}" fill-opacity=".7"')
            last_name_at = at
    for i, line in enumerate(lines):
        colour = COLOURS[i % len(COLOURS)]
        points = " ".join(f"{across(x)},{up(y)}" for x, y in zip(line.x, line.y))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if len(lines) > 1:
            write(line.label, _LEFT + 8, _TOP + 14 * (i + 1), f'fill="{colour}"')
    return "".join([*parts, "</svg>"])
