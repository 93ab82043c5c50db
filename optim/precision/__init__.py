"""bfloat16 parameters and states, stepped in float32: master weights and stochastic rounding.

An update does not know of it: it gets float32 tensors, and what it changed in them is rounded and written back.
"""
