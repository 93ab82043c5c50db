"""The base of `optim`: its packages of optimizers import from this one, and it imports from none of them.

Arithmetic on lists of tensors, distributed tensors (DTensor), and what values a hyperparameter accepts.
"""
