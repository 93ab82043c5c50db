"""How a config becomes groups, an optimizer and schedulers, and back."""
