"""The base class as its users see it: their own optimizers, global steps, state visited, names to sparsify."""

import copy
import inspect
import pickle

import pytest
import torch
from torch.nn import Parameter

import optim
import optim.precision.options
from tests.optim.problems import differences, flat, give_gradients, ours, parameters, run, same, snapshot
from tests.optim.rows import BY_ID, BY_NAME, FULLEST


class CustomOptimizer(optim.Optimizer):
    """Heavy ball, in the outline of the page "Writing custom optimizers"."""

    def __init__(self, params, lr=0.1, decay=0.9, enable_global_step=False):
        defaults = {"lr": lr, "decay": decay}
        super().__init__(params, defaults, enable_global_step=enable_global_step)

    def preinitialize(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["velocity"] = torch.zeros_like(p)

    def step(self, closure=None):
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if self.enable_global_step:
                    self.increment_global_step(p)
                velocity = self.state[p]["velocity"]
                velocity.mul_(group["decay"]).add_(p.grad)
                p.sub_(group["lr"] * velocity)
        return loss

    def state_names_to_sparsify(self):
        return ["velocity"]


class Decorated(CustomOptimizer):
    """With a step as torch's own are, without gradients."""

    @torch.no_grad()
    def step(self, closure=None):
        return super().step(closure)


class Forgetful(CustomOptimizer):
    """Makes state in its step, as torch's own optimizers do."""

    def step(self, closure=None):
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("late_moment", torch.zeros_like(p))


class Averaging(CustomOptimizer):
    """A subclass of a subclass, whose step calls the one above it."""

    def preinitialize(self):
        super().preinitialize()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["average"] = p.detach().clone()

    def step(self, closure=None):
        loss = super().step(closure)
        for p in flat(self):
            self.state[p]["average"].lerp_(p, 0.1)
        return loss


@pytest.mark.parametrize("global_step", [False, True])
@pytest.mark.parametrize("kind", [CustomOptimizer, Decorated])
def test_a_custom_optimizer(kind, global_step):
    params, plain = parameters("Adam"), parameters("Adam")
    optimizer = kind(params, lr=0.1, enable_global_step=global_step)
    theirs = torch.optim.SGD(plain, lr=0.1, momentum=0.9)
    keys = {"velocity", "step"} if global_step else {"velocity"}
    assert all(set(optimizer.state[p]) == keys for p in params)
    for one, ps in ((optimizer, params), (theirs, plain)):
        run(one, ps, 1, 6)
    assert all(torch.allclose(p, q, rtol=0, atol=1e-14) for p, q in zip(params, plain))
    assert optimizer.step(lambda: torch.is_grad_enabled()) is True
    if global_step:
        # The three steps, less those without a gradient, and the one with the closure.
        assert [int(optimizer.state[p]["step"]) for p in params[:4]] == [7, 5, 3, 0]
    new = Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [new], "tags": "late"})
    assert set(optimizer.state[new]) == keys and optimizer.param_groups[1]["decay"] == 0.9
    assert optimizer.param_groups[1]["tags"] == {"late"}


def test_a_custom_optimizer_saves_copies_and_pickles(tmp_path):
    params = parameters("Adam")
    optimizer = Averaging(params, enable_global_step=True)
    run(optimizer, params, 1, 3)
    torch.save(optimizer.state_dict(), tmp_path / "custom.pt")
    resumed_params = [Parameter(p.detach().clone()) for p in params]
    resumed = Averaging(resumed_params, enable_global_step=True)
    resumed.load_state_dict(torch.load(tmp_path / "custom.pt", weights_only=True))
    copied = copy.deepcopy(optimizer)
    pickled, calls = pickle.loads(pickle.dumps(optimizer)), []
    optimizer.register_step_pre_hook(lambda *args: calls.append(1))
    for one in (optimizer, resumed, copied, pickled):
        run(one, flat(one), 4, 6)
        for p, q in zip(flat(one), params):
            assert torch.equal(p, q) and all(same(v, optimizer.state[q][k]) for k, v in one.state[p].items())
    assert calls == [1] * 3  # though the step calls that of its base, which has hooks of its own
    with pytest.raises((ValueError, TypeError)):
        optimizer.load_state_dict(CustomOptimizer(parameters("Adam")).state_dict())


def test_state_of_a_custom_optimizer_follows_its_parameters():
    optimizer = CustomOptimizer([Parameter(torch.ones(2))])
    new = optimizer.param_groups[0]["params"][0] = Parameter(torch.ones(3, dtype=torch.float64))
    new.grad = torch.ones_like(new)
    optimizer.step()
    assert list(optimizer.state) == [new] and torch.equal(optimizer.state[new]["velocity"], new.grad)


def test_the_arguments_of_a_subclass_are_its_own():
    class Scaled(optim.AdamW):
        def __init__(self, params, scale):
            super().__init__(params, lr=0.1 * scale)

    assert list(inspect.signature(Scaled).parameters) == ["params", "scale"]
    assert list(inspect.signature(optim.AdamW).parameters)[-4:] == list(optim.precision.options.DEFAULTS)


class WithAverage(optim.AdamW):
    """An optimizer of ours with one more state, which starts with the weights."""

    def preinitialize(self):
        super().preinitialize()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["average"] = p.detach().clone()


def test_one_more_state_in_an_optimizer_of_ours():
    """It exists from construction, in a group that is added later, and again after a reset, as AdamW's own states."""
    params, new = [Parameter(torch.ones(2)), Parameter(torch.ones(3))], Parameter(torch.full((4,), 2.0))
    optimizer = WithAverage(params)
    optimizer.add_param_group({"params": [new]})
    keys = {"step", "exp_avg", "exp_avg_sq", "average"}
    assert all(set(optimizer.state[p]) == keys for p in [*params, new])
    assert torch.equal(optimizer.state[new]["average"], new)
    for p in (*params, new):
        p.grad = torch.ones_like(p)
    optimizer.step()
    optimizer.state[new]["average"].zero_()
    optimizer.reset_state([new])
    assert torch.equal(optimizer.state[new]["average"], new) and optimizer.state[new]["step"] == 0
    assert all(set(optimizer.state[p]) == keys and optimizer.state[p]["step"] == 1 for p in params)


class Early(CustomOptimizer):
    """Makes state in its constructor, where nothing would make it anew for a parameter that comes later."""

    def __init__(self, params):
        super().__init__(params)
        for p in params:
            self.state[p]["early_moment"] = torch.zeros_like(p)


@pytest.mark.parametrize(("kind", "key"), [(Forgetful, "late_moment.*preinitialize"), (Early, "early_moment")])
def test_state_made_elsewhere_is_caught(kind, key):
    optimizer = kind([Parameter(torch.ones(2)), Parameter(torch.ones(3))])
    give_gradients(flat(optimizer), 8)
    with pytest.raises((RuntimeError, ValueError), match=f"(?s){key}"):
        optimizer.step()


def test_a_step_from_another_base_runs_without_gradients():
    class Mixin:
        def step(self, closure=None):
            self.param_groups[0]["params"][0].sub_(0.25)

    class Mixed(Mixin, optim.Optimizer):
        def preinitialize(self):
            pass

    p = Parameter(torch.ones(1))
    Mixed([p], {}).step()
    assert p.item() == 0.75


def test_an_optimizer_must_say_how_it_starts_and_steps():
    for kept in ([], ["step"], ["preinitialize"]):
        incomplete = type("Incomplete", (optim.Optimizer,), {name: getattr(CustomOptimizer, name) for name in kept})
        with pytest.raises(TypeError, match="abstract"):
            incomplete([Parameter(torch.ones(2))], {"lr": 0.1})


@BY_NAME
def test_a_global_step_counts_the_steps_with_a_gradient(row):
    """Each step counts once, also where the optimizer keeps a step for itself, and changes nothing else."""
    params, others = parameters(row.name), parameters(row.name)
    optimizer, plain = ours(row, params, enable_global_step=True), ours(row, others)
    for one, ps in ((optimizer, params), (plain, others)):
        run(one, ps, 1, 6)
    for p, q in zip(params, others):
        assert torch.equal(p, q) and all(same(v, optimizer.state[p][k]) for k, v in plain.state[q].items())
    if "step" not in plain.state[others[0]]:
        with pytest.raises(RuntimeError, match="enable_global_step"):
            plain.increment_global_step(others[0])
    again = ours(row, parameters(row.name), enable_global_step=True)
    assert all(torch.equal(state["step"], torch.tensor(0.0)) for state in again.state.values())
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert [int(again.state[p]["step"]) for p in flat(again)[:4]] == [6, 4, 2, 0]
    before = snapshot(again)
    assert torch.equal(again.increment_global_step(flat(again)[0]), again.state[flat(again)[0]]["step"])
    assert differences(before, snapshot(again)) == [("state", 0, "step")]


@pytest.mark.parametrize("row", [*FULLEST, BY_ID["RMSprop-groups"], BY_ID["SGD-lr"]], ids=lambda row: row.id)
def test_visit_state_and_names_to_sparsify(row):
    """The names are of states whose zeros follow those of the parameter: of its shape, and never a count."""
    optimizer = ours(row, parameters(row.name))
    run(optimizer, flat(optimizer), 1, 2)
    before, seen = snapshot(optimizer), []
    assert optimizer.visit_state(lambda value: seen.append(value)) is None
    assert [id(v) for v in seen] == [id(v) for s in optimizer.state.values() for v in s.values()]
    optimizer.visit_state(lambda value: value.clone() if value.dim() else None)
    now = [v for s in optimizer.state.values() for v in s.values()]
    assert all((a is b) == (a.dim() == 0) for a, b in zip(seen, now)) and not differences(before, snapshot(optimizer))
    names = optimizer.state_names_to_sparsify()
    shaped = {key for p, s in optimizer.state.items() for key, x in s.items() if p.dim() and x.shape == p.shape}
    assert isinstance(names, list) and sorted(names) == sorted(shaped)
    applied = []
    assert optimizer.apply(applied.append) is optimizer and applied == [optimizer]
