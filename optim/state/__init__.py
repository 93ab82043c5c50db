"""The objects that exist before the first step: the base class of all optimizers, and the state of their parameters.

The state follows a parameter that is moved, cast or replaced (keeper.py); checkpoint.py loads it completely or not at
all.
"""
