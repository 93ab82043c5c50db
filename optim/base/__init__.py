"""The ground that all other rooms of `optim` stand on, and that knows none of them.

Arithmetic on lists of tensors, distributed tensors (DTensor), and what values a hyperparameter accepts.
"""
