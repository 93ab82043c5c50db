"""`WeightAverage`: an average of a model's weights over time instead of steps.

weight_average.py has the class and its step. share.py computes how much the present weights count in a step, from the
times of the clock. swapping.py has the tensors that hold the average in a `with average.swapped()` block.
"""

from .weight_average import WeightAverage

__all__ = ["WeightAverage"]
