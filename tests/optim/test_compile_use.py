"""Compiled steps in use: loaded, copied, hooked, given new numbers and groups, and several in one process."""

import copy
import io

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import optim
from tests.optim.compiling import BACKEND, HELD, PLAIN, by_hand, fresh, graphs, race, tensors
from tests.optim.problems import assert_close, assert_states_close, flat, give_gradients, ours
from tests.optim.rows import tensor
from tests.optim.test_compile import small
from tests.optim.test_custom import Averaging, CustomOptimizer
from tests.optim.training import bits, network

SOME = pytest.mark.parametrize("name", ["SGD", "AdamW"])


@pytest.fixture(autouse=True)
def _fresh():
    with fresh():
        yield


def compiled(name):
    """A compiled optimizer, and the same one without compilation."""
    optimizer, eager = ours(PLAIN[name], small(name)), ours(PLAIN[name], small(name))
    optimizer.compile(backend=BACKEND)
    return optimizer, eager


def run(optimizer, first, last):
    """Steps in which all parameters have gradients."""
    for step in range(first, last + 1):
        give_gradients(flat(optimizer), step, missing={})
        optimizer.step()


def same_hyperparameters(optimizer, other):
    return tensors(optimizer) == [
        {key: group[key] for key in start} for start, group in zip(tensors(optimizer), other.param_groups)
    ]


def test_more_optimizers_than_torch_would_compile_again():
    """Each has the whole budget of recompilations, also those of one class."""
    with torch._dynamo.config.patch(recompile_limit=2):
        optimizers = [compiled(name)[0] for name in ("Lion", "Lion", "SGD", "Lion", "AdamW")]
        for _ in range(2):
            for optimizer in optimizers:
                run(optimizer, 1, 1)
        assert graphs() == len(optimizers)


def test_two_optimizers_by_hand():
    runners = []
    for name in ("Lion", "SGD"):
        optimizer = ours(HELD[name], small(name))
        runners.append((optimizer, by_hand(optimizer.step), ours(PLAIN[name], small(name))))
    for step in range(1, 6):
        for optimizer, take, eager in runners:
            race([step], tensors(eager), (optimizer, take), (eager, eager.step))
    assert graphs() == 2
    for optimizer, _, eager in runners:
        assert_states_close(optimizer, eager, 1e-12)


@SOME
def test_state_dicts_go_in_and_out(name):
    """Both ways between compiled and not, through a file, and the graph stays the one it was."""
    optimizer, eager = compiled(name)
    run(optimizer, 1, 3)
    run(eager, 1, 3)
    files = []
    for one in (optimizer, eager):
        file = io.BytesIO()
        torch.save({"state": one.state_dict(), "params": [p.detach() for p in flat(one)]}, file)
        files.append(file)
    held = {key: value for key, value in optimizer.param_groups[0].items() if isinstance(value, Tensor)}
    for step in (4, 5):  # on from here, back, and on again
        run(optimizer, step, 6)
        for one, file in zip((optimizer, eager), reversed(files)):
            file.seek(0)
            saved = torch.load(file, weights_only=True)
            one.load_state_dict(saved["state"])
            for p, value in zip(flat(one), saved["params"]):
                p.data.copy_(value)
    assert graphs() == 1
    assert all(optimizer.param_groups[0][key] is value for key, value in held.items())
    assert same_hyperparameters(optimizer, eager)
    assert not any(isinstance(value, Tensor) for value in eager.param_groups[0].values())
    for one in (optimizer, eager):
        run(one, 4, 8)
    assert graphs() == 1
    assert_states_close(optimizer, eager, 1e-12)


@SOME
def test_other_hyperparameters_are_loaded_into_the_graph(name):
    optimizer, eager = compiled(name)
    run(optimizer, 1, 2)
    run(eager, 1, 2)
    eager.param_groups[0]["lr"] *= 0.5
    optimizer.load_state_dict(copy.deepcopy(eager.state_dict()))
    for one in (optimizer, eager):
        run(one, 3, 5)
    assert graphs() == 1 and optimizer.param_groups[0]["lr"] == eager.param_groups[0]["lr"]
    assert_states_close(optimizer, eager, 1e-12)


@SOME
def test_a_copy_is_not_compiled(name):
    optimizer, _ = compiled(name)
    run(optimizer, 1, 3)
    copied = copy.deepcopy(optimizer)
    lrs = [one.param_groups[0]["lr"] for one in (optimizer, copied)]
    assert lrs[0] is not lrs[1] and lrs[0] == lrs[1]
    run(copied, 4, 6)
    assert graphs() == 1
    run(optimizer, 4, 6)
    assert graphs() == 1
    assert_states_close(optimizer, copied, 1e-12)
    copied.compile(backend=BACKEND)
    run(copied, 7, 8)
    run(optimizer, 7, 8)
    assert graphs() == 2
    assert_states_close(optimizer, copied, 1e-12)


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
@pytest.mark.parametrize("kind", [float, torch.tensor, tensor], ids=["float", "float32", "float64"])
def test_numbers_assigned_after_compile(name, kind):
    """As torch's schedulers for floats do it: no graph for each, and the number counts."""
    optimizer, eager = compiled(name)
    for step in range(1, 13):
        for one in (optimizer, eager):
            (group,) = one.param_groups
            rate = 0.1 / step
            group["lr"] = kind(rate) if one is optimizer else float(kind(rate))
            group["weight_decay"] = 0.01 * step
            if "betas" in group:
                group["betas"] = (0.9 - 0.01 * step, 0.99 - 0.01 * step)
            run(one, step, step)
    assert graphs() == 1
    assert_states_close(optimizer, eager, 1e-12)


def test_hooks_fire_around_a_compiled_step():
    optimizer, eager = compiled("AdamW")
    seen = []
    handles = [
        optimizer.register_step_pre_hook(lambda one, args, kwargs: seen.append("before")),
        optimizer.register_step_post_hook(lambda one, args, kwargs: seen.append("after")),
        optimizer.register_zero_grad_pre_hook(lambda one, args, kwargs: seen.append("zero")),
        register_optimizer_step_pre_hook(lambda one, args, kwargs: seen.append("before any")),
        register_optimizer_step_post_hook(lambda one, args, kwargs: seen.append("after any")),
    ]
    try:
        for step in (1, 2):
            give_gradients(flat(optimizer), step, missing={})
            optimizer.step()
            optimizer.zero_grad()
    finally:
        for handle in handles:
            handle.remove()
    assert seen == ["before any", "before", "after", "after any", "zero"] * 2
    run(eager, 1, 2)
    assert graphs() == 1
    assert_states_close(optimizer, eager, 1e-12)


def test_a_pre_hook_may_change_the_numbers():
    optimizer, eager = compiled("AdamW")
    for one in (optimizer, eager):
        one.register_step_pre_hook(lambda o, args, kwargs: o.param_groups[0].update(lr=o.param_groups[0]["lr"] * 0.5))
        run(one, 1, 4)
    assert graphs() == 1
    assert_states_close(optimizer, eager, 1e-12)


@SOME
def test_a_model_trains_with_closures_and_zeroed_gradients(name):
    """The losses of the eager run, whether gradients are dropped or filled with zeros."""
    losses = []
    for is_compiled in (True, False):
        model = network()[0].double()
        inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        optimizer = ours(PLAIN[name], list(model.parameters()))
        if is_compiled:
            optimizer.compile(backend=BACKEND)

        def closure(model=model, optimizer=optimizer, inputs=inputs):
            optimizer.zero_grad(set_to_none=False)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            loss.backward()
            return loss

        losses.append([optimizer.step(closure).item() for _ in range(10)])
        assert all(p.requires_grad and p.is_leaf for p in model.parameters())
    assert graphs() == 1
    assert_close(*(torch.tensor(one, dtype=torch.float64) for one in losses), 1e-12)
    assert losses[0][-1] < losses[0][0]


def test_other_gradients_compile_once_more():
    """Which parameters have a gradient belongs to the graph: each set is compiled when it first comes."""
    optimizer, eager = compiled("AdamW")
    for step in range(1, 13):
        for one in (optimizer, eager):
            give_gradients(flat(one), step, missing={1: (1, 2, 3, 7, 8, 9)})
            one.step()
    assert graphs() == 2
    assert_states_close(optimizer, eager, 1e-12)


def test_no_gradient_at_all():
    optimizer, _ = compiled("AdamW")
    before = bits(torch.nn.ParameterList(flat(optimizer)))
    optimizer.step()
    assert optimizer.step(lambda: 3.0) == 3.0
    assert all(map(torch.equal, before, flat(optimizer)))


def test_groups_added_to_a_compiled_optimizer():
    optimizer, eager = compiled("AdamW")
    run(optimizer, 1, 2)
    run(eager, 1, 2)
    for one in (optimizer, eager):
        one.add_param_group({"params": small("AdamW", seed=5), "lr": 0.2, "tags": "late"})
        run(one, 3, 5)
    assert graphs() == 2 and isinstance(optimizer.param_groups[1]["lr"], Tensor)
    optimizer.param_groups[1]["lr"].fill_(0.3)
    eager.param_groups[1]["lr"] = 0.3
    for one in (optimizer, eager):
        run(one, 6, 7)
    assert graphs() == 2
    assert_states_close(optimizer, eager, 1e-12)


def test_compiled_again_with_other_options():
    optimizer, eager = compiled("AdamW")
    run(optimizer, 1, 2)
    optimizer.compile(backend="eager")
    run(optimizer, 3, 4)
    assert graphs() == 2
    run(eager, 1, 4)
    assert_states_close(optimizer, eager, 1e-12)


@pytest.mark.parametrize("how", ["compile", "hand"])
def test_global_steps_are_counted_in_the_graph(how):
    optimizer = optim.Lion(small("Lion"), lr=torch.tensor(0.1, dtype=torch.float64), enable_global_step=True)
    take = by_hand(optimizer.step) if how == "hand" else optimizer.step
    if how == "compile":
        optimizer.compile(backend=BACKEND)
    for step in range(1, 6):
        give_gradients(flat(optimizer), step, missing={1: range(9)})
        take()
    assert graphs() == 1
    assert [int(optimizer.state[p]["step"]) for p in flat(optimizer)] == [5, 0, 5]


@pytest.mark.parametrize("kind", [CustomOptimizer, Averaging])
@pytest.mark.parametrize("global_step", [False, True])
def test_a_custom_optimizer_by_hand(kind, global_step):
    """Written from the outline of the page "Writing custom optimizers", with no thought of compilers."""
    scheduled = {key: torch.tensor(value, dtype=torch.float64) for key, value in (("lr", 0.1), ("decay", 0.9))}
    params, eager_params = small("Muon"), small("Muon")
    optimizer = kind(params, **scheduled, enable_global_step=global_step)
    eager = kind(eager_params, lr=0.1, decay=0.9, enable_global_step=global_step)
    take = by_hand(optimizer.step)
    race(range(1, 101), tensors(optimizer), (optimizer, take), (eager, eager.step))
    assert graphs() == 1
    assert_states_close(optimizer, eager, 1e-12)
    if global_step:
        assert all(int(state["step"]) == 100 for state in optimizer.state.values())


def test_a_counter_in_double_precision():
    """Where torch's default dtype is float64, so is the step: its count is not lost in a graph."""
    torch.set_default_dtype(torch.float64)
    try:
        optimizer, eager = compiled("AdamW")
        custom = CustomOptimizer([Parameter(torch.ones(2))], enable_global_step=True)
    finally:
        torch.set_default_dtype(torch.float32)
    for one in (optimizer, eager):
        run(one, 1, 5)
    assert_states_close(optimizer, eager, 1e-12)
    take = by_hand(custom.step)
    for _ in range(3):
        custom.param_groups[0]["params"][0].grad = torch.ones(2, dtype=torch.float64)
        take()
    (state,) = custom.state.values()
    assert state["step"].dtype == torch.float64 and state["step"] == 3
