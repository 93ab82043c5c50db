"""What the gallery draws. The schedules of `timesched` are in the table of tests/laws/rows.py."""

CLOSED_FORMS = (
    "ConstantLR(optimizer, 0.1)",
    "LinearLR(optimizer, 0.1, 0.02, total_iters=40, cycle=False)",
    "LinearLR(optimizer, 0.1, 0.02, total_iters=40, cycle=True)",
    "PolynomialLR(optimizer, 0.1, 0.0, total_iters=100, power=0.5)",
    "PolynomialLR(optimizer, 0.1, 0.0, total_iters=100, power=2.0)",
    "ExponentialLR(optimizer, 0.1, total_iters=20, decay_rate=0.5, staircase=False)",
    "ExponentialLR(optimizer, 0.1, total_iters=20, decay_rate=0.5, staircase=True)",
    "InverseExponentialTimeDecayLR(optimizer, 0.1, step_exponent=1.0, total_iters=20, decay_rate=0.5)",
    "InverseExponentialTimeDecayLR(optimizer, 0.1, step_exponent=1.5, total_iters=20, decay_rate=0.5)",
    "InverseSquareRootDecayLR(optimizer, 0.1, scale=4.0, warmup_steps=16)",
    "CosineDecayLR(optimizer, 0.1, 0.01, total_iters=80)",
    'WarmupStableDecayLR(optimizer, 0.1, total_iters=100, warmup_iters=10, decay_iters=40, decay="linear")',
    'WarmupStableDecayLR(optimizer, 0.1, total_iters=100, warmup_iters=10, decay_iters=40, decay="cosine")',
    'WarmupStableDecayLR(optimizer, 0.1, total_iters=100, warmup_iters=10, decay_iters=40, decay="1-sqrt")',
    "SequentialLR(optimizer, [LinearLR(optimizer, 0.0, 0.1, 20), StepLR(optimizer, 0.1, 30, 0.5)], milestones=[20])",
    "PiecewiseConstantLR(optimizer, [0.1, 0.05, 0.01], milestones=[40, 80])",
    "MultiStepLR(optimizer, 0.1, gamma=0.5, milestones=[40, 60, 80])",
    "StepLR(optimizer, 0.1, step_size=25, gamma=0.5)",
    "CosineAnnealingLR(optimizer, 0.1, T_max=40)",
    "LambdaLR(optimizer, 0.1)",
    "CosineAnnealingWarmRestarts(optimizer, 0.1, T_0=20, T_mult=1)",
    "CosineAnnealingWarmRestarts(optimizer, 0.1, T_0=20, T_mult=2)",
    "MultiplicativeLR(optimizer, 0.1, coefficient=0.97)",
    "ChainedLR([LinearLR(optimizer, 0.02, 0.1, 20), StepLR(optimizer, 0.1, 30, 0.5)])",
    'CyclicLR(optimizer, 0.02, 0.1, step_size_up=15, mode="triangular")',
    'CyclicLR(optimizer, 0.02, 0.1, step_size_up=15, mode="triangular2")',
    'CyclicLR(optimizer, 0.02, 0.1, step_size_up=15, mode="exp_range", gamma=0.98)',
    'OneCycleLR(optimizer, 0.01, 0.1, total_steps=100, anneal_strategy="cos", three_phase=False)',
    'OneCycleLR(optimizer, 0.01, 0.1, total_steps=100, anneal_strategy="linear", three_phase=True)',
)
# The base class; another name of ChainedLR; and the values of another scheduler, times a number of each group.
WITHOUT_PICTURE = {"LRScheduler", "ChainedScheduler", "ScalePerParamLR"}

# Calls, and why this learning rate.
OPTIMIZERS = {
    (
        "SGD([w], lr=0.02, momentum=0.0)",
        "SGD([w], lr=0.02, momentum=0.8)",
        "SGD([w], lr=0.02, momentum=0.8, nesterov=True)",
    ): "The largest curvature at the start is 76: there, plain steps overshoot by ever more if `lr` is above 2 / 76.",
    ("Adam([w], lr=0.2)",): "The first step is as long as `lr`, in each of the two numbers.",
    ("AdamW([w], lr=0.2, weight_decay=0.0)", "AdamW([w], lr=0.2, weight_decay=0.5)"): "`lr` is that of `optim.Adam`.",
    ("NAdam([w], lr=0.2)",): "`lr` is that of `optim.Adam`.",
    ("Adamax([w], lr=0.4)",): "The steep start stays in the denominator for long, and `lr` is large to make up for it.",
    ("RAdam([w], lr=0.02)",): "The first five steps are those of gradient descent with momentum, and need its `lr`.",
    ("Adagrad([w], lr=0.5)",): "The first step is as long as `lr`, in each of the two numbers; later ones are shorter.",
    (
        "Adadelta([w], lr=1.0, eps=1e-3)",
    ): "The paper has no `lr`. The first step is the root of ten times `eps`, in each number.",
    ("RMSprop([w], lr=0.05)",): "The first step is ten times as long as `lr`, in each of the two numbers.",
    (
        "Rprop([w], lr=0.05)",
    ): "`lr` is the length of the first step; signs of gradients make the lengths of the others.",
    ("ASGD([w], lr=0.02, t0=20)",): "`lr` is that of `optim.SGD`. The dashed line is the average after step `t0`.",
    ("Lion([w], lr=0.05)",): "Each step is as long as `lr`, in each of the two numbers.",
    ("Lamb([w], lr=0.1)",): "Each step is `lr` times as long as the parameter.",
    ("Adafactor([w], lr=0.2)",): "Each step is at most `lr` times as long as the parameter. Of a single column, the "
    "average square of each element is kept.",
    (
        "Muon([w], lr=0.3, weight_decay=0.0)",
    ): "Muon takes matrices alone, so the parameter has two rows and one column. The orthogonal matrix nearest to one "
    "column is the column divided by its length: all steps are about equally long, 0.28 times `lr` (0.2 times the root "
    "of 2 rows).",
    (
        "NorMuon([w], lr=0.3, weight_decay=0.0)",
    ): "Each step is as long as that of `optim.Muon`, and its two numbers are alike: each is divided by its own mean.",
}

# The order of the galleries; a schedule that no group names comes with the decays.
GROUPS = {
    "schedules": {
        "Warmup and decay": """
            LinearWithWarmupScheduler CosineAnnealingWithWarmupScheduler PolynomialWithWarmupScheduler
            InverseSquareRootWithWarmupScheduler MultiStepWithWarmupScheduler ConstantWithWarmupScheduler
        """,
        "WSD": "WarmupStableDecayScheduler",
        "Piecewise": "PiecewiseScheduler MultiStepScheduler StepScheduler ConstantScheduler",
        "Decay": """
            LinearScheduler CosineAnnealingScheduler PolynomialScheduler ExponentialScheduler PowerScheduler
            RexScheduler
        """,
        "Cyclic": "OneCycleScheduler CyclicScheduler CosineAnnealingWarmRestartsScheduler",
        "Betas, as values": "HalfLife",
        "Made of other schedules": "WarmupScheduler CooldownScheduler SequenceScheduler ProductScheduler",
    },
    "closed_forms": {
        "WSD": "WarmupStableDecayLR",
        "Decay": """
            LinearLR CosineDecayLR CosineAnnealingLR PolynomialLR ExponentialLR MultiplicativeLR
            InverseExponentialTimeDecayLR InverseSquareRootDecayLR LambdaLR
        """,
        "Piecewise": "ConstantLR StepLR MultiStepLR PiecewiseConstantLR",
        "Cyclic": "OneCycleLR CyclicLR CosineAnnealingWarmRestarts",
        "Made of other schedulers": "SequentialLR ChainedLR",
    },
    "optimizers": {
        "Adam and its variants": "AdamW Adam NAdam RAdam Adamax Lamb",
        "Matrices": "Muon NorMuon",
        "Signs of gradients": "Lion Rprop",
        "Sums and averages of squares": "Adafactor Adagrad Adadelta RMSprop",
        "Gradient descent": "SGD ASGD",
    },
}
