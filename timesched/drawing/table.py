"""A table of values over a run: as text, CSV, JSON, and HTML in a notebook."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape

from timesched.drawing.lines import Source, axis, run_length
from timesched.run.horizon import Horizon
from timesched.time.units import Exact, TimeUnit, exact_number
from timesched.time.value import Time, TimeLike

_MAX_ROWS = 100_000


@dataclass(frozen=True)
class Table:
    """Rows of numbers and texts, each as long as the header. `str` gives columns, with the note below.

    `texts`: the columns that are aligned to the left, by their names. All others are aligned to the right.

    >>> print(Table(("time", "lr"), [("0dur", 0.001), ("1dur", 0.0)]))
    time     lr
    0dur  0.001
    1dur      0
    """

    header: tuple[str, ...]
    rows: list[tuple[object, ...]]
    note: str = ""
    texts: tuple[str, ...] = ()

    def csv(self) -> str:
        """The table as comma-separated values, numbers in full."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.header, *self.rows])
        return out.getvalue()

    def json(self) -> str:
        """The table as a JSON list of objects, numbers in full."""
        return json.dumps([dict(zip(self.header, row)) for row in self.rows], indent=1)

    def _formatted_rows(self) -> list[list[str]]:
        return [list(map(_format_cell, row)) for row in self.rows]

    def __str__(self) -> str:
        columns = []
        for name, *cells in zip(self.header, *self._formatted_rows()):
            width = max(map(len, [name, *cells]))
            columns.append([cell.ljust(width) if name in self.texts else cell.rjust(width) for cell in [name, *cells]])
        lines = ["  ".join(row).rstrip() for row in zip(*columns)]
        return "\n".join([*lines, self.note] if self.note else lines)

    def _repr_html_(self) -> str:
        head = _html_row(self.header, "th")
        body = "".join(_html_row(row, "td") for row in self._formatted_rows())
        note = f"<caption>{escape(self.note)}</caption>" if self.note else ""
        return f"<table>{note}<thead>{head}</thead><tbody>{body}</tbody></table>"


def _html_row(cells: Sequence[str], tag: str) -> str:
    inside = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
    return f"<tr>{inside}</tr>"


def _format_cell(cell: object) -> str:
    if isinstance(cell, tuple):
        return f"({', '.join(map(_format_cell, cell))})"
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)


def moments(horizon: Horizon, every: TimeLike) -> Iterator[tuple[Time, Exact]]:
    """The multiples of a time over a run, and the end of the run: each as a share of the run, and as a count in the
    unit of `run_length`.

    Raises `ValueError` if the time is not above 0, or has more than 100,000 multiples.
    """
    own, (length, end_counter) = run_length(horizon)[0], horizon.place("1dur")
    time = Time.from_input(every)
    step, counter = horizon.place(time, scale=False)
    end = horizon.change(length, end_counter, counter)
    if step <= 0:
        raise ValueError(f"every={str(time)!r}: the time is not above 0. Pass a time above 0.")
    if end / Fraction(step) > _MAX_ROWS:
        raise ValueError(f"every={str(time)!r}: the run has more than {_MAX_ROWS} of these times. Pass a longer time.")
    counts = [exact_number(Fraction(step) * i) for i in range(int(end / Fraction(step)) + 1)]
    for count in [*counts, *([] if counts[-1] == end else [end])]:
        share = Fraction(horizon.change(count, counter, end_counter)) / (length or 1)
        yield Time._make(share, TimeUnit.DURATION), exact_number(horizon.change(count, counter, own))


def values_table(sources: Sequence[Source], every: TimeLike = "0.1dur", unit: TimeUnit | str | None = None) -> Table:
    """The values of several schedules. The rows cover the run of the first one.

    A schedule on another run has its value at the count of the row; with `unit="dur"`, at that share of its own run.
    Raises `ValueError` if there is no schedule, or if a unit does not convert.
    """
    if not sources:
        raise ValueError("sources=[]: a table needs a schedule. Pass at least one source.")
    horizon = sources[0].horizon
    own, (wanted, on_axis) = run_length(horizon)[0], axis(horizon, unit)
    share_alone = wanted is TimeUnit.DURATION
    rows: list[tuple[object, ...]] = []
    for share, count in moments(horizon, every):
        there = () if share_alone else (_whole_as_int(on_axis(count)),)
        other = share if share_alone else Time._make(count, own)
        values = (source.at(share if source.horizon == horizon else other) for source in sources)
        rows.append((_whole_as_int(float(share.exact)), *there, *values))
    return Table(("dur", *(() if share_alone else (wanted.value,)), *(source.name for source in sources)), rows)


def _whole_as_int(value: float) -> float | int:
    return int(value) if value == int(value) else value
