"""How the schedulers of optim are made: one table of formulas, and what a closed-form scheduler is."""
