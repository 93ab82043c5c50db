"""Beside torch: its class of the same name in float64, and its schedulers next to ours."""

import pytest
from torch.optim import lr_scheduler as theirs

from optim import lr_scheduler as ours
from tests.optim.schedulers.building import KIND, make, optimizer, rates, stepped, value
from tests.optim.schedulers.rows import COSINE, WARMUP

# Ours and torch's, where no golden number binds; of all classes tests/docs compares the calls in choosing.md.
# torch counts what each mode of a cycle does, whatever `scale_mode` says.
PAIRS = {
    "WarmRestarts": (
        lambda on: ours.CosineAnnealingWarmRestarts(on, 0.1, 5, 2, 0.02),
        lambda on: theirs.CosineAnnealingWarmRestarts(on, 5, 2, 0.02),
    ),
    "triangular2": (
        lambda on: ours.CyclicLR(on, 0.1, 1.0, 6, mode="triangular2", scale_mode="iterations"),
        lambda on: theirs.CyclicLR(on, 0.1, 1.0, 6, mode="triangular2", cycle_momentum=False),
    ),
    "exp_range": (
        lambda on: ours.CyclicLR(on, 0.1, 1.0, 7, 4, mode="exp_range", gamma=0.97),
        lambda on: theirs.CyclicLR(on, 0.1, 1.0, 7, 4, mode="exp_range", gamma=0.97, cycle_momentum=False),
    ),
    "OneCycle": (
        lambda on: ours.OneCycleLR(on, 0.1, 1.0, 60, pct_start=0.25, three_phase=True),
        lambda on: theirs.OneCycleLR(
            on, 1.0, 60, pct_start=0.25, three_phase=True, div_factor=10, cycle_momentum=False
        ),
    ),
}


@pytest.mark.parametrize(("mine", "new"), PAIRS.values(), ids=PAIRS)
def test_the_values_of_torch(mine, new):
    on = optimizer(lr=0.1)
    other = new(on)
    expected = rates(on)
    while len(expected) < 60:
        on.step()
        other.step()
        expected += rates(on)
    # torch multiplies its way along, which costs a rounding each step
    assert stepped(mine(optimizer()), 60) == pytest.approx(expected, rel=0, abs=1e-12)


def test_torchs_own_schedulers_beside_ours():
    """On another key; torch's wraps the optimizer's step, and its warning still works for its own order."""
    on = optimizer("ours")
    one, other = make(*COSINE, on, "wd"), theirs.StepLR(on, 2, 0.5)
    for t in range(4):
        assert value(one) == one.values(5)[t] and rates(on) == [0.5 * 0.5 ** (t // 2)]
        on.step()
        one.step()
        other.step()
    assert not isinstance(other, ours.LRScheduler)


@KIND
def test_inside_of_torchs_sequence(kind):
    """It sets its schedulers back to -1, from where these cannot begin."""
    on = optimizer(kind)
    of_torch, first = theirs.ConstantLR(on, 1.0), make(*WARMUP, on)
    with pytest.raises(ValueError, match=r"write optim\.lr_scheduler\.SequentialLR\(optimizer, \[first, second\]"):
        theirs.SequentialLR(on, [of_torch, first], milestones=[2])
    assert int(first.last_epoch) == 0
