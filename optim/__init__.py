"""Optimizers that initialize their state ahead of the first step.

This package is empty for now and only holds the name: the preinitializing optimizers come with the next
release.
"""
