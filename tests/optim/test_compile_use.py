"""Compiled steps in use: loaded, copied, hooked, given new numbers and groups, and several in one process."""

import copy
import io

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import optim
from tests.building import bits, network
from tests.optim.compiling import BACKEND, LOWERED, PLAIN, by_hand, graphs, put, race, small
from tests.optim.problems import assert_close, assert_states_close, flat, give_gradients, ours
from tests.optim.rows import tensor
from tests.optim.test_custom import Averaging, CustomOptimizer

SOME = pytest.mark.parametrize("name", ["SGD", "AdamW"])


pytestmark = pytest.mark.usefixtures("compiles_afresh")


def compiled(name, backend="eager"):
    """A compiled optimizer, and the same one without compilation. By default the graph is captured and not lowered."""
    optimizer, eager = ours(PLAIN[name], small(name)), ours(PLAIN[name], small(name))
    optimizer.compile(backend=backend)
    return optimizer, eager


def run(optimizers, first, last, missing=None):
    """The same steps with each."""
    for step in range(first, last + 1):
        for optimizer in optimizers:
            give_gradients(flat(optimizer), step, missing=missing or {})
            optimizer.step()


def assert_graphs(count, optimizers):
    assert graphs() == count
    assert_states_close(*optimizers, 1e-12)


def test_more_optimizers_than_torch_would_compile_again():
    """Each has the whole budget of recompilations, also those of one class."""
    with torch._dynamo.config.patch(recompile_limit=2):
        optimizers = [compiled(name)[0] for name in ("Lion", "Lion", "SGD", "Lion", "AdamW")]
        run(optimizers, 1, 2)
        assert graphs() == len(optimizers)


@SOME
def test_state_dicts_go_in_and_out(name):
    """Both ways between compiled and not, through a file, and the graph stays the one it was."""
    pair = optimizer, eager = compiled(name, BACKEND)
    run(pair, 1, 3)
    files = []
    for one in pair:
        file = io.BytesIO()
        torch.save({"state": one.state_dict(), "params": [p.detach() for p in flat(one)]}, file)
        files.append(file)
    held = {key: value for key, value in optimizer.param_groups[0].items() if isinstance(value, Tensor)}
    numbers = {key: float(value) for key, value in held.items()}
    for step in (4, 5):  # on from here, back, and on again
        run(pair, step, 6)
        for one, file in zip(pair, reversed(files)):
            one.param_groups[0]["lr"] = put(one.param_groups[0]["lr"], 7.0)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
            one.load_state_dict(saved["state"])
            for p, value in zip(flat(one), saved["params"]):
                p.data.copy_(value)
    assert all(optimizer.param_groups[0][key] is value and value == numbers[key] for key, value in held.items())
    assert {key: eager.param_groups[0][key] for key in numbers} == numbers
    assert not any(isinstance(value, Tensor) for value in eager.param_groups[0].values())
    run(pair, 4, 8)
    assert_graphs(1, pair)


@SOME
def test_a_copy_is_not_compiled(name):
    optimizer, _ = compiled(name)
    run([optimizer], 1, 3)
    copied = copy.deepcopy(optimizer)
    pair = optimizer, copied
    lrs = [one.param_groups[0]["lr"] for one in pair]
    assert lrs[0] is not lrs[1] and lrs[0] == lrs[1]
    run(pair, 4, 6)
    assert_graphs(1, pair)
    copied.compile(backend="eager")
    run(pair, 7, 8)
    assert_graphs(2, pair)


@SOME
@pytest.mark.parametrize("kind", [float, torch.tensor, tensor], ids=["float", "float32", "float64"])
def test_numbers_assigned_after_compile(name, kind):
    """As torch's schedulers for floats do it: no graph for each, and the number counts."""
    pair = optimizer, _ = compiled(name)
    for step in range(1, 13):
        for one in pair:
            (group,) = one.param_groups
            rate = 0.1 / step
            group["lr"] = kind(rate) if one is optimizer else float(kind(rate))
            group["weight_decay"] = 0.01 * step
            if "betas" in group:
                group["betas"] = (0.9 - 0.01 * step, 0.99 - 0.01 * step)
        run(pair, step, step)
    assert_graphs(1, pair)


def test_hooks_fire_around_a_compiled_step():
    """One of them changes a number, which counts in this step."""
    pair = optimizer, _ = compiled("AdamW")
    seen = []

    def note(what):
        return lambda one, args, kwargs: seen.append(what) if one is optimizer else None

    for one in pair:
        one.register_step_pre_hook(lambda o, args, kwargs: o.param_groups[0].update(lr=o.param_groups[0]["lr"] * 0.5))
    optimizer.register_step_pre_hook(note("before"))
    optimizer.register_step_post_hook(note("after"))
    optimizer.register_zero_grad_pre_hook(note("zero"))
    handles = [
        register_optimizer_step_pre_hook(note("before any")),
        register_optimizer_step_post_hook(note("after any")),
    ]
    try:
        for step in (1, 2):
            run(pair, step, step)
            optimizer.zero_grad()
    finally:
        for handle in handles:
            handle.remove()
    assert seen == ["before any", "before", "after", "after any", "zero"] * 2
    assert_graphs(1, pair)


@SOME
def test_a_model_trains_with_closures_and_zeroed_gradients(name):
    losses = []
    for is_compiled in (True, False):
        model = network()[0].double()
        inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        optimizer = ours(PLAIN[name], list(model.parameters()))
        if is_compiled:
            optimizer.compile(backend="eager")

        def closure(model=model, optimizer=optimizer, inputs=inputs):
            optimizer.zero_grad(set_to_none=False)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            loss.backward()
            return loss

        losses.append(torch.stack([optimizer.step(closure).detach() for _ in range(10)]))
        assert all(p.requires_grad and p.is_leaf for p in model.parameters())
    assert graphs() == 1
    assert_close(*losses, 1e-12)
    assert losses[0][-1] < losses[0][0]


@SOME
def test_a_training_step_in_one_graph(name):
    """With torch's trace_autograd_ops the backward pass is in the graph, too, as docs/compiling.md says."""
    x = torch.ones(3, 4, dtype=torch.float64)
    models = [torch.nn.Linear(4, 2, dtype=torch.float64) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    one, other = (ours(PLAIN[name], list(model.parameters())) for model in models)
    one.hold_tensors()
    params = flat(one)

    def train():
        models[0](x).square().sum().backward()
        one.step()
        for p in params:
            p.grad = None

    with torch._dynamo.config.patch(trace_autograd_ops=True):
        compiled_step = by_hand(train)
        for _ in range(3):
            compiled_step()
            models[1](x).square().sum().backward()
            other.step()
            other.zero_grad()
    assert_graphs(1, (one, other))


def test_other_gradients_compile_once_more():
    """Which parameters have a gradient belongs to the graph: each set is compiled when it first comes."""
    pair = compiled("AdamW")
    run(pair, 1, 12, missing={1: (1, 2, 3, 7, 8, 9)})
    assert_graphs(2, pair)
    for p in flat(pair[0]):
        p.grad = None
    before = bits(torch.nn.ParameterList(flat(pair[0])))
    assert pair[0].step(lambda: 3.0) == 3.0
    assert all(map(torch.equal, before, flat(pair[0])))


def test_groups_added_to_a_compiled_optimizer():
    pair = optimizer, eager = compiled("AdamW")
    run(pair, 1, 2)
    for one in pair:
        one.add_param_group({"params": small("AdamW", seed=5), "lr": 0.2, "tags": "late"})
    run(pair, 3, 5)
    assert graphs() == 2 and isinstance(optimizer.param_groups[1]["lr"], Tensor)
    optimizer.param_groups[1]["lr"].fill_(0.3)
    eager.param_groups[1]["lr"] = 0.3
    run(pair, 6, 7)
    assert_graphs(2, pair)


def test_compiled_again_with_other_options():
    pair = compiled("AdamW")
    run(pair, 1, 2)
    pair[0].compile(backend=LOWERED)
    run(pair, 3, 4)
    assert_graphs(2, pair)


class TwoGraphs(optim.Lion):
    """With an update that torch.compile cannot have in one graph."""

    @staticmethod
    def update(h, f, p, g, exp_avg):
        torch._dynamo.graph_break()
        optim.Lion.update(h, f, p, g, exp_avg)


def test_an_update_that_is_not_one_graph_is_an_error():
    optimizer = TwoGraphs(small("Lion"))
    optimizer.compile(backend="eager")
    give_gradients(flat(optimizer), 1)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
        optimizer.step()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"mode": "fast"}, "Unrecognized mode=fast"), ({"options": {"speed": 1}}, "Unexpected optimization option speed")],
)
def test_the_callers_options_of_inductor_reach_torch(options, message):
    """Ours would replace them, or torch would refuse a mode next to options."""
    optimizer = optim.Lion(small("Lion"))
    with pytest.raises(RuntimeError, match=message):
        optimizer.compile(**options)


def test_global_steps_are_counted_in_the_graph():
    optimizer = ours(PLAIN["Lion"], small("Lion"), enable_global_step=True)
    optimizer.compile(backend=BACKEND)
    run([optimizer], 1, 5, missing={1: range(9)})
    assert graphs() == 1
    assert [int(optimizer.state[p]["step"]) for p in flat(optimizer)] == [5, 0, 5]


@pytest.mark.parametrize("kind", [CustomOptimizer, Averaging])
@pytest.mark.parametrize("global_step", [False, True])
def test_a_custom_optimizer_by_hand(kind, global_step):
    """Written from the outline of the page "Writing custom optimizers", with no thought of compilers."""
    optimizer = kind(small("Muon"), lr=tensor(0.1), decay=tensor(0.9), enable_global_step=global_step)
    race(optimizer, kind(small("Muon"), enable_global_step=global_step), by_hand(optimizer.step, LOWERED))
    assert {int(state.get("step", 8)) for state in optimizer.state.values()} == {8}


def test_a_counter_in_double_precision():
    """Where torch's default dtype is float64, so is the step: its count is not lost in a graph."""
    torch.set_default_dtype(torch.float64)
    try:
        pair = compiled("AdamW")
        custom = CustomOptimizer([Parameter(torch.ones(2))], enable_global_step=True)
    finally:
        torch.set_default_dtype(torch.float32)
    run(pair, 1, 5)
    assert_graphs(1, pair)
    take = by_hand(custom.step)
    for _ in range(3):
        flat(custom)[0].grad = torch.ones(2, dtype=torch.float64)
        take()
    (state,) = custom.state.values()
    assert state["step"].dtype == torch.float64 and state["step"] == 3
