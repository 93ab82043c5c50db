"""Batch sizes that change during a run."""
