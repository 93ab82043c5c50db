"""The optimizers, one in a file: its arguments, its state, and the equation of its step.

How a step runs, what allocates state before the first step, and bfloat16 are the layers below: step, state, precision.
"""
