"""Resuming with a clock: in any order, with a description of its times, and as copies."""

import copy
import pickle

import pytest
import torch

from optim import lr_scheduler
from tests.optim.schedulers.building import KINDS, make, optimizer, value
from tests.optim.schedulers.parts import Nested
from tests.optim.schedulers.rows import COSINE, WARMUP
from tests.optim.schedulers.test_clock import LENGTH, clock_of, run, written

KIND = pytest.mark.parametrize("kind", KINDS)


@KIND
@pytest.mark.parametrize("order", [("clock", "scheduler"), ("scheduler", "clock"), ("clock",)])
def test_resuming_in_any_order(kind, order, tmp_path):
    """The value is that of the clock's moment as soon as the clock is there, whichever comes last."""

    def new():
        clock = clock_of()
        on = optimizer(kind)
        parts = [make(*Nested(part.stem, written(*part, "tok")), on, clock=clock) for part in (WARMUP, COSINE)]
        return {"clock": clock, "scheduler": lr_scheduler.SequentialLR(on, parts, ["0.125dur"], clock=clock)}

    whole = new()
    values = whole["scheduler"].values(30)
    assert run(whole["scheduler"], whole["clock"], 12) == values[:13]
    torch.save({name: part.state_dict() for name, part in whole.items()}, tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    again = new()
    for part in order:
        again[part].load_state_dict(saved[part])
    assert value(again["scheduler"]) == values[12]
    assert run(again["scheduler"], again["clock"], 10) == values[12:23]


def test_a_state_of_a_clocked_schedule_names_its_times():
    given = {"initial_learning_rate": 0.1, "end_learning_rate": 0.0}
    one = lr_scheduler.LinearLR(optimizer(), **given, total_iters="0.5dur", clock=clock_of())
    other = lr_scheduler.LinearLR(optimizer(), **given, total_iters="0.25dur", clock=clock_of())
    with pytest.raises(ValueError, match=r"total_iters.*0\.5dur.*0\.25dur"):
        other.load_state_dict(one.state_dict())


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["deepcopy", "pickle"]
)
def test_a_copy_follows_the_clock_that_is_copied_with_it(copied):
    clock = clock_of()
    one = lr_scheduler.LinearLR(optimizer(), 0.1, 0.0, "1dur", clock=clock)
    new_clock, twin = copied((clock, one))
    new_clock.tick()
    twin.step()
    assert value(twin) == 0.1 * (1 - 1 / LENGTH) and value(one) == 0.1
    new_clock.load_state_dict(clock.state_dict())
    assert value(twin) == 0.1
