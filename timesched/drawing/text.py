"""Lines as text: in braille dots, or in letters if there are several lines and no colours to tell them apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from timesched.drawing.lines import UNIT_NAMES, Line, extent, picture_marks, ticks
from timesched.time.units import format_number

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille character: four rows of two
_COLOURS = (34, 33, 32, 35, 36, 31)  # of a terminal
_ROWS = 14


def text(lines: Sequence[Line], width: int = 80, colours: bool = False) -> str:
    """A picture of lines with the marks above it: `width` characters wide, but at least 20 next to the numbers.

    `colours`: whether the terminal has colours.
    """
    end, low, high = extent(lines)
    scale = {round((high - y) / (high - low) * (_ROWS - 1)): format_number(y) for y in ticks(low, high, 5)}
    left = max(map(len, scale.values())) + 2
    columns = max(width - left - 1, 20)
    dotted = colours or len(lines) == 1
    cells = [[" "] * columns for _ in range(_ROWS)]
    above = [" "] * columns
    for name, x in picture_marks(lines):
        at = round(x / end * (columns - 1))
        for cell in cells:
            cell[at] = "┊"
        _place_label(above, name, at)
    for i, line in enumerate(lines):
        for (row, column), dots in _line_cells(line, (end, low, high), columns, dotted).items():
            sign = chr(0x2800 + dots) if dotted else chr(ord("a") + i % 26)
            cells[row][column] = f"\x1b[{_COLOURS[i % 6]}m{sign}\x1b[0m" if colours else sign
    picture = [f"{'':{left}}{''.join(above)}"] if any(map(str.strip, above)) else []
    picture += [f"{scale.get(i, ''):>{left - 1}} {''.join(row)}" for i, row in enumerate(cells)]
    below = [" "] * columns
    for x in ticks(0.0, end, max(columns // 12, 2)):
        _place_label(below, format_number(x), round(x / end * (columns - 1)))
    picture.append(f"{'':{left}}{''.join(below)}")
    picture.append(f"{'':{left}}{UNIT_NAMES[lines[0].unit]:^{columns}}")
    for i, line in enumerate(lines if len(lines) > 1 else ()):
        sign = f"\x1b[{_COLOURS[i % 6]}m━\x1b[0m" if colours else chr(ord("a") + i % 26)
        picture.append(f"{'':{left}}{sign} {line.label}")
    return "\n".join(row.rstrip() for row in picture)


def _place_label(row: list[str], label: str, at: int) -> None:
    """Put a label into a row, centered at a column, if there is enough space."""
    start = max(min(at - len(label) // 2, len(row) - len(label)), 0)
    if not "".join(row[max(start - 1, 0) : start + len(label) + 1]).strip():
        row[start : start + len(label)] = label


def _line_cells(line: Line, box: tuple[float, float, float], columns: int, dotted: bool) -> dict[tuple[int, int], int]:
    """The cells of a picture that a line goes through, by row and column, with the braille dots of each cell."""
    end, low, high = box
    across, down = (2, 4) if dotted else (1, 1)  # the dots of a cell
    wide, tall = columns * across - 1, _ROWS * down - 1
    points = [(x / end * wide, (high - y) / (high - low) * tall) for x, y in zip(line.x, line.y)]
    cells: dict[tuple[int, int], int] = {}
    for x, y in _dots(points):
        cell = y // down, x // across
        cells[cell] = cells.get(cell, 0) | (_DOTS[y % 4][x % 2] if dotted else 0)
    return cells


def _dots(points: Sequence[tuple[float, float]]) -> Iterator[tuple[int, int]]:
    """The dots of straight lines through the points."""
    for (x, y), (next_x, next_y) in zip(points, [*points[1:], points[-1]]):
        steps = max(round(abs(next_x - x)), round(abs(next_y - y)), 1)
        for i in range(steps + 1):
            yield round(x + (next_x - x) * i / steps), round(y + (next_y - y) * i / steps)
