"""Schedules inside the trainers of others: one module for each, and nothing else of this package imports a trainer."""
