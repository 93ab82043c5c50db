"""Muon and NorMuon: steps along the nearest orthogonal matrix, with AdamW or Lion for what is no matrix.

A step of matrices goes through these modules from the top down (for all other steps, see optim/step):

    muon.py               the classes: arguments, the checks of groups, and `update`, for matrices that no ranks share
    ranks.py              `step_shared_matrices`, for matrices that ranks share
      exchange.py         sends their tensors
        matrices.py       the equations, for lists of matrices of one shape
          newton_schulz.py    the iterations
"""

from .muon import Muon, NorMuon

__all__ = ["Muon", "NorMuon"]
