"""The maths of schedules: curves, shapes made of them, and positions on a run, for numbers and for tensors.

What a schedule of your own needs is here: `from timesched.maths import Frame, UnsuitableRun, shapes`.
"""

from timesched.maths import curves, shapes
from timesched.maths.counts import Mark, Period, Span
from timesched.maths.positions import Frame, UnsuitableRun

__all__ = ["Frame", "Mark", "Period", "Span", "UnsuitableRun", "curves", "shapes"]
