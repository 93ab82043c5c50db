"""How the schedulers of optim are made: their formulas, and what a closed-form scheduler is."""
