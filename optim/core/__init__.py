"""How the step of any optimizer runs. The arguments, state and equation of each are in its own file, one folder up.

optimizer.py        the base class: all state exists before the first step
update_rule.py      the base class of the optimizers here: a subclass defines its state, its factors and its update
hyperparameters.py  what values a hyperparameter accepts
work.py             the tensors that are updated together, and their numbers
execution.py        how an update runs: on numbers in eager steps on the CPU and on CUDA, on tensors elsewhere
fused.py            torch's fused kernels, for eager steps
blocks.py           parts of tensors that fit the cache of a CPU
low_precision.py    bfloat16 parameters and states, stepped in float32
matrix_steps.py     what Muon does with lists of matrices
newton_schulz.py    the orthogonal matrices next to others, for Muon
known_counts.py     what counters on a GPU hold, without reading them
tensor_lists.py     arithmetic on lists of tensors
common_steps.py     steps that several update rules share
step_wrapper.py     what surrounds every `step`: gradients off, torch's hooks, refusal of new state
state_follows.py    what becomes of the state of a parameter that was moved, cast, resized or replaced
checkpoint.py       loading a state dict
sharding.py         distributed tensors (DTensor)
"""
