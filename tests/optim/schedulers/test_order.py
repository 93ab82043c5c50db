"""Nothing is patched onto the optimizer's step, so no order of calls is warned of, also where steps are compiled."""

import itertools
import warnings

import pytest
import torch
from torch._dynamo.utils import counters

import optim
from optim import lr_scheduler
from tests.optim.schedulers.building import KEYS, KINDS, count, make, optimizer, value
from tests.optim.schedulers.parts import Nested
from tests.optim.schedulers.rows import BY_STEM, COSINE

KIND = pytest.mark.parametrize("kind", KINDS)
NESTED = Nested("Sequential", BY_STEM["Sequential"].examples[3])
EAGER = "eager"  # captures graphs, and compiles nothing


@pytest.fixture
def fresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


def with_gradients(on):
    for group in on.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p)


@KIND
def test_any_order_of_steps_and_loads(kind):
    """o: the optimizer's step, s: the scheduler's, l: a load. The value is always that of the scheduler's steps."""
    for order in sorted({*itertools.permutations("oossl"), tuple("sssoo"), tuple("lss")}):
        on = optimizer(kind)
        one = make(*COSINE, on)
        values, state = one.values(5), one.state_dict()
        calls = {"o": on.step, "s": one.step, "l": lambda one=one, state=state: one.load_state_dict(state)}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for each in order:
                with_gradients(on)
                calls[each]()
                assert value(one) == values[count(one)], order
        assert not caught, order


@KIND
def test_the_step_is_the_optimizers_own(kind):
    """No wrapper, no counter, no hook; nor an initial value beside the one in use."""
    on = optimizer(kind)
    before, hooks = set(vars(on)), [len(v) for k, v in vars(on).items() if k.endswith("_hooks")]
    step, keys = on.step.__func__, set(on.param_groups[0])
    one = make(*NESTED, on)
    assert on.step.__func__ is step and set(vars(on)) == before and "step" not in vars(on)
    assert [len(v) for k, v in vars(on).items() if k.endswith("_hooks")] == hooks
    assert set(on.param_groups[0]) <= keys | {"initial_lr"} and not hasattr(on.step, "_wrapped_by_lr_sched")
    one.step()


@KIND
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("first", ["optimizer", "scheduler"])
def test_a_compiled_step_of_the_optimizer(kind, when, first, fresh):
    """Compiled before or after the scheduler is made, and whichever steps first."""
    on = optimizer(kind)
    with_gradients(on)
    one = make(*NESTED, on) if when == "after" else None
    step = torch.compile(on.step, backend=EAGER)
    one = one or make(*NESTED, on)
    used, values = [], one.values(12)
    p = on.param_groups[0]["params"][0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(10):
            if first == "optimizer":
                used.append(value(one))
                step()
                one.step()
            else:
                one.step()
                used.append(value(one))
                step()
    assert not [
        each for each in caught if "lr_scheduler.step" in str(each.message) or "optimizer.step" in str(each.message)
    ]
    assert used == (values[:10] if first == "optimizer" else values[1:11])
    twin = torch.nn.Parameter(torch.zeros(3))
    plain = torch.optim.SGD([twin], lr=0.1, momentum=0.9, weight_decay=0.02)
    for rate in used:
        twin.grad = torch.ones(3)
        plain.param_groups[0]["lr"] = rate
        plain.step()
    assert torch.allclose(p, twin, rtol=1e-6)


ROWS_IN_A_GRAPH = [
    Nested(row.stem, arguments)
    for row in BY_STEM.values()
    for arguments in (row.examples[:1], row.examples[-1:])[row.stem == "Sequential"]
]


@pytest.mark.parametrize("i", range(len(ROWS_IN_A_GRAPH)), ids=[nested.stem for nested in ROWS_IN_A_GRAPH])
def test_the_step_in_a_graph(i, fresh):
    """Captured once, with no break, and the values are those of the eager steps; on tensors of either suite."""
    on, nested = optimizer(KINDS[1 + i % 2]), ROWS_IN_A_GRAPH[i]
    with_gradients(on)
    one = make(*nested, on)
    expected = one.values(9)
    scheduler_step = torch.compile(one.step, backend=EAGER, fullgraph=True)
    for t in range(9):
        assert value(one) == pytest.approx(expected[t], rel=1e-14, abs=1e-15) and count(one) == t
        scheduler_step()
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]


def test_both_in_one_function(fresh):
    """As a user writes it: a training step with the optimizer's and three schedulers' steps."""
    on = optim.AdamW([torch.nn.Parameter(torch.ones(3))], lr=0.1, betas=(0.9, 0.99))

    class Beta(optim.scheduler.LinearScheduler):
        param_group_key = "betas[0]"

    several = [
        make(*NESTED, on),
        make("Step", {"initial_val": 0.1, "step_size": 2, "gamma": 0.5}, on, "wd"),
        Beta(on, 0.8, 0.9, 5),
    ]
    on.hold_tensors()
    with_gradients(on)

    @torch.compile(backend=EAGER, fullgraph=True)
    def step():
        on.step()
        for one in several:
            one.step()

    expected = [one.values(9) for one in several]
    for t in range(8):
        group = on.param_groups[0]
        seen = [float(group["lr"]), float(group["weight_decay"]), float(group["betas"][0])]
        assert seen == pytest.approx([values[t] for values in expected], rel=1e-14)
        step()
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]


def test_an_optimizer_that_is_compiled_by_itself(fresh):
    """`optimizer.compile()` before the schedulers are there, which change two of its numbers at every step."""
    on = optimizer("ours")
    on.compile(backend=EAGER)
    with_gradients(on)
    several = make(*COSINE, on), make("Linear", {"initial_val": 0.0, "end_val": 0.1, "total_iters": 8}, on, "wd")
    for t in range(6):
        assert [value(one) for one in several] == [one.values(7)[t] for one in several]
        on.step()
        for one in several:
            one.step()
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]


def test_numbers_in_a_graph_are_refused_with_the_way_out(fresh):
    one = make(*COSINE, optimizer("numbers"))
    with pytest.raises(RuntimeError, match=r"torch\.tensor"):
        torch.compile(one.step, backend=EAGER, fullgraph=True)()


def test_torchs_own_schedulers_beside_ours(fresh):
    """On another key; torch's wraps the optimizer's step, and its warning still works for its own order."""
    on = optimizer("ours")
    one = make(*COSINE, on, "wd")
    theirs = torch.optim.lr_scheduler.StepLR(on, 2, 0.5)
    for t in range(4):
        assert value(one) == one.values(5)[t] and float(on.param_groups[0]["lr"]) == 0.5 * 0.5 ** (t // 2)
        on.step()
        one.step()
        theirs.step()
    assert not isinstance(theirs, lr_scheduler.LRScheduler)


@pytest.mark.parametrize("family", KEYS)
def test_stepping_many_times_leaves_nothing_behind(family):
    """The attributes are the same after a thousand steps."""
    one = make(*NESTED, optimizer("ours"), family)
    one.step()
    before = set(vars(one))
    for _ in range(1000):
        one.step()
    assert set(vars(one)) == before and count(one) == 1001
