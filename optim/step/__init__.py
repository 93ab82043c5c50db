"""How the step of any optimizer runs: the base class of the algorithms, and the execution of their update.

rule_optimizer.py plans a step, and work.py holds the tensors that it changes together. prepared.py keeps what the plan
has decided, for the next steps. execution.py and the other modules carry it out: in blocks, by fused kernels, on
numbers or on tensors.
"""
