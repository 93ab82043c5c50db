"""Muon and NorMuon: steps along the nearest orthogonal matrix, with AdamW or Lion for what is no matrix.

The classes are in muon.py, lists of matrices in matrices.py, the iterations in newton_schulz.py, and ranks.py shares
the work among ranks.
"""

from .muon import Muon, NorMuon

__all__ = ["Muon", "NorMuon"]
