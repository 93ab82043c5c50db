"""Resuming: at every step, through a file, with the group's value right at once; in any order; copies and pickles."""

import copy
import pickle

import pytest
import torch
from torch import Tensor

import optim
from tests.optim.schedulers.building import KINDS, count, make, optimizer, stepped, value
from tests.optim.schedulers.parts import Nested
from tests.optim.schedulers.rows import BY_STEM, CASES, IDS

CASE = pytest.mark.parametrize(("row", "arguments"), CASES, ids=IDS)
KIND = pytest.mark.parametrize("kind", KINDS)
NESTED = Nested("Sequential", BY_STEM["Sequential"].examples[3])
STEPS = 33
COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda pair: pickle.loads(pickle.dumps(pair))}


def through_a_file(state, path):
    torch.save(state, path)
    return torch.load(path, weights_only=True)


@CASE
def test_every_step_through_a_file(row, arguments, tmp_path):
    """Each resumed run goes on bit for bit, from a new optimizer whose groups hold something else."""
    whole = make(row.stem, arguments, optimizer())
    values = whole.values(STEPS + 4)
    states = []
    for _ in range(STEPS):
        states.append(whole.state_dict())
        whole.step()
    resumed = make(row.stem, arguments, optimizer(lr=3.0))
    for t, state in enumerate(through_a_file(states, tmp_path / "state.pt")):
        resumed.optimizer.param_groups[0]["lr"] = 123.0
        resumed.load_state_dict(state)
        assert value(resumed) == values[t] and count(resumed) == t
        assert resumed.get_last_lr() == [values[t]]
        assert stepped(resumed, 4) == values[t : t + 4]


@KIND
@pytest.mark.parametrize("first", ["optimizer", "scheduler"])
def test_with_the_optimizers_checkpoint_in_either_order(kind, first, tmp_path):
    """The value, and that the tensor in the group is the one there was, where the optimizer keeps it."""

    def new():
        on = optimizer(kind, {"tags": "a"}, {})
        return on, make("CosineDecay", {"initial_val": 0.1, "end_val": 0.0, "total_iters": 20}, on)

    on, one = new()
    for _ in range(7):
        on.step()
        one.step()
    saved = through_a_file({"optimizer": on.state_dict(), "scheduler": one.state_dict()}, tmp_path / "both.pt")
    again, resumed = new()
    held = [group["lr"] for group in again.param_groups]
    for part in ("optimizer", "scheduler") if first == "optimizer" else ("scheduler", "optimizer"):
        {"optimizer": again, "scheduler": resumed}[part].load_state_dict(saved[part])
    assert [float(group["lr"]) for group in again.param_groups] == one.values(8)[7:] * 2
    if kind == "ours":
        assert all(group["lr"] is tensor for group, tensor in zip(again.param_groups, held))
    assert stepped(resumed, 5) == one.values(12)[7:]


@KIND
def test_training_goes_on_bit_for_bit(kind, tmp_path):
    """Parameters too, of an optimizer with momentum, learning rate and weight decay on schedules."""

    def new():
        on = optimizer(kind)
        with torch.no_grad():
            on.param_groups[0]["params"][0].copy_(torch.tensor([1.0, -2.0, 3.0]))
        return on, [make(*NESTED, on), make("Step", {"initial_val": 0.1, "step_size": 3, "gamma": 0.5}, on, "wd")]

    def train(on, schedulers, first, last):
        p = on.param_groups[0]["params"][0]
        for step in range(first, last):
            p.grad = torch.sin(torch.arange(3) + step) + p.detach()
            on.step()
            for scheduler in schedulers:
                scheduler.step()
        return p.detach().clone()

    whole = train(*new(), 0, 30)
    on, schedulers = new()
    train(on, schedulers, 0, 11)
    state = {"optimizer": on.state_dict(), "schedulers": [one.state_dict() for one in schedulers], "p": on.param_groups}
    state["p"] = on.param_groups[0]["params"][0].detach()
    state = through_a_file(state, tmp_path / "all.pt")
    again, resumed = new()
    with torch.no_grad():
        again.param_groups[0]["params"][0].copy_(state["p"])
    again.load_state_dict(state["optimizer"])
    for one, saved in zip(resumed, state["schedulers"]):
        one.load_state_dict(saved)
    assert torch.equal(train(again, resumed, 11, 30), whole)


@CASE
def test_the_value_depends_on_the_step_alone(row, arguments):
    """Whichever way the step was come to, and whatever stood in the group."""
    one = make(row.stem, arguments, optimizer())
    values = one.values(60)
    for t in (17, 3, 59, 0, 31):
        one.last_epoch = t
        one.refresh()
        assert value(one) == values[t]
    one.optimizer.param_groups[0]["lr"] = 9.0
    one.step()
    assert value(one) == values[32]


@KIND
@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_copies_go_on_by_themselves(kind, copied):
    on = optimizer(kind)
    one = make(*NESTED, on)
    stepped(one, 4)
    twin_on, twin = copied((on, one))
    assert twin.optimizer is twin_on and twin_on is not on
    values = one.values(30)
    assert stepped(twin, 20) == values[3:23]
    assert (value(one), count(one)) == (values[3], 3)
    assert stepped(one, 5) == values[3:8] and value(twin) == values[22]
    assert twin.state_dict()["last_epoch"] == 22
    make("Constant", {"val": 0.1}, twin_on).step()
    with pytest.raises(ValueError, match="superseded"):  # the copy owns the key of its own optimizer alone
        twin.step()
    one.step()


def test_a_copy_of_the_scheduler_alone_has_an_optimizer_of_its_own():
    one = make(*NESTED, optimizer("tensors"))
    twin = copy.deepcopy(one)
    twin.step()
    assert twin.optimizer is not one.optimizer and count(one) == 0 and value(one) == one.values(1)[0]


@KIND
def test_the_groups_tensor_stays_the_same(kind):
    """Over steps and loads: what a graph has captured is what is written."""
    on = optimizer(kind)
    one = make(*NESTED, on)
    held = on.param_groups[0]["lr"]
    assert isinstance(held, Tensor) == (kind != "numbers")
    if kind == "ours":
        assert isinstance(on, optim.Optimizer) and held.dtype == torch.float64 and held.dim() == 0
    state = one.state_dict()
    stepped(one, 3)
    one.load_state_dict(state)
    if kind != "numbers":
        assert on.param_groups[0]["lr"] is held and not held.requires_grad
    else:
        assert type(on.param_groups[0]["lr"]) is float
