"""Arguments of each closed-form learning-rate scheduler, for tests in a graph: 25 steps show all of its phases."""

SCHEDULES = {
    "ConstantLR": (0.1,),
    "PolynomialLR": (0.1, 0.0, 8, 2.0, True),
    "LinearLR": (0.0, 0.1, 10),
    "ExponentialLR": (0.1, 5, 0.5, True),
    "InverseExponentialTimeDecayLR": (0.1, 1, 5, 0.5, True),
    "InverseSquareRootDecayLR": (0.1, 1.0, 4),
    "CosineDecayLR": (0.1, 0.01, 15),
    "WarmupStableDecayLR": (0.1, 20, 5, 8, 0.01, 0.02, "cosine", "1-sqrt"),
    "PiecewiseConstantLR": ([0.1, 0.2, 0.3], [5, 10]),
    "MultiStepLR": (0.1, 0.5, [5, 10]),
    "StepLR": (0.1, 5, 0.5),
    "CosineAnnealingLR": (0.1, 7),
    "CosineAnnealingWarmRestarts": (0.1, 3, 2),
    "CyclicLR": (0.1, 0.2, 3),
    "OneCycleLR": (0.01, 0.1, 20),
    "LambdaLR": (0.1,),
    "MultiplicativeLR": (0.1, 0.9),
}
