"""What Hypothesis calls when it is imported, so that `st.from_type` knows our types without a set-up."""

import importlib


def register() -> None:
    """Import `timesched.testing`, which registers the strategies; if it is what imports Hypothesis, it goes on to."""
    importlib.import_module("timesched.testing")
