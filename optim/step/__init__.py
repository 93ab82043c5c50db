"""How the step of any optimizer runs: the base class of the algorithms, and what carries out their update.

rule_optimizer.py plans a step, work.py holds what it changes together, execution.py and the rest carry it out: in
blocks, by fused kernels, on numbers or on tensors.
"""
