"""A run: its length and conversion factors, its clock, events, and counts over ranks."""
