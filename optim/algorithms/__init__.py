"""The optimizers, one in a file: its arguments, its state, and the equation of its step.

The layers below run a step (step), create state before the first step (state) and handle bfloat16 (precision).
"""
