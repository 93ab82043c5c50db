"""A prepared step equals the step that is planned from the start, bit for bit, whatever changes between two steps.

Two optimizers over equal parameters get the same changes. One of them prepares its steps, the other one never does.
"""

import copy
import pickle
import random
import sys
from collections import deque
from unittest import mock

import pytest
import torch
from torch.nn import Parameter

import optim
from optim.step import stepper
from optim.step.prepared import PreparedStep
from tests.optim.problems import differences, flat, snapshot

OPTIMIZERS = {
    "AdamW": ("AdamW", {"weight_decay": 0.1}),
    "amsgrad": ("Adam", {"amsgrad": True, "weight_decay": 0.1}),
    "SGD": ("SGD", {"lr": 0.1}),
    "global step": ("SGD", {"lr": 0.1, "enable_global_step": True}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    "dampening": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.2}),
    "Lion": ("Lion", {"weight_decay": 0.1}),
    "RMSprop": ("RMSprop", {"momentum": 0.5, "centered": True}),
    "NAdam": ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "Adagrad": ("Adagrad", {"lr_decay": 0.1}),
    "RAdam": ("RAdam", {}),
    "ASGD": ("ASGD", {"t0": 2}),
    "Adadelta": ("Adadelta", {"rho": 0.8}),
    "Adamax": ("Adamax", {}),
    "Rprop": ("Rprop", {}),
    "Lamb": ("Lamb", {"weight_decay": 0.1}),
    "Adafactor": ("Adafactor", {"lr": 0.01, "beta1": 0.9}),
}
SHAPES = ((4, 3), (5,), (4, 3), (2, 3, 2, 2), (), (4, 3), (5,))


class Run:
    """An optimizer with two groups, and the choices of the changes, which depend on the seed alone."""

    def __init__(self, name: str, prepares: bool, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(0)
        params = [Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
        class_name, arguments = OPTIMIZERS[name]
        groups = [{"params": params[:4]}, {"params": params[4:], "lr": 0.05}]
        self.optimizer = getattr(optim, class_name)(groups, **arguments)
        self.prepares, self.seed, self.random = prepares, seed, random.Random(seed)
        self.steps, self.prepared_steps = 0, 0
        self.missing: set[int] = set()  # parameters without gradient
        self.change_gradients = lambda params: None  # for the next step

    def any_group(self):
        return self.random.choice(self.optimizer.param_groups)

    def any_parameter(self):
        return self.random.choice(flat(self.optimizer))

    def step(self, *arguments):
        """One step with new gradients. Returns the error, if there is one."""
        self.steps += 1
        generator = torch.Generator().manual_seed(1000 * self.seed + self.steps)
        params = flat(self.optimizer)
        self.optimizer.zero_grad(set_to_none=self.steps % 3 > 0)
        for i, p in enumerate(params):
            values = torch.randn(p.shape, generator=generator).to(p.dtype)
            p.grad = None if i in self.missing else values
        self.change_gradients(params)
        self.change_gradients = lambda params: None
        self.optimizer._stepper._unprepared_steps = 1  # so that each step prepares the next one
        prepare = stepper.prepare_step if self.prepares else lambda *_: None
        make_works = PreparedStep.make_works

        def counting(*arguments):
            works = make_works(*arguments)
            self.prepared_steps += works is not None
            return works

        with (
            mock.patch.object(stepper, "prepare_step", prepare),
            mock.patch.object(PreparedStep, "make_works", counting),
        ):
            try:
                self.optimizer.step(*arguments)
            except Exception as error:  # whatever it is, the prepared step must raise the same
                for p in params:  # which a snapshot cannot compare
                    p.grad = None if p.grad is None or p.grad.is_sparse else p.grad
                return repr(error)
        return None


# The changes. Each may return a function that repairs what a step cannot go on with.

CHANGES = {}


def change(function):
    CHANGES[function.__name__] = function
    return function


@change
def nothing(run):
    pass


@change
def gradient_missing_or_back(run):
    run.missing ^= {run.random.randrange(len(flat(run.optimizer)))}


@change
def group_without_gradients(run):
    indices = set(range(len(run.optimizer.param_groups[0]["params"])))
    run.missing = run.missing - indices if indices & run.missing else run.missing | indices


@change
def no_gradients(run):
    run.missing = set(range(len(flat(run.optimizer))))
    return lambda: run.missing.clear()


@change
def strides_of_a_gradient(run):
    def transpose(params):
        for p in params:
            if p.dim() > 1 and p.grad is not None:
                p.grad = p.grad.transpose(0, 1).contiguous().transpose(0, 1)
                break

    run.change_gradients = transpose


@change
def gradient_is_expanded(run):
    def expand(params):
        for p in params:
            if p.dim() == 1 and p.grad is not None:
                p.grad = p.grad[0].expand(p.shape)

    run.change_gradients = expand


@change
def one_gradient_of_two_parameters(run):
    def share(params):
        first, second = [p for p in params if p.shape == (4, 3)][:2]
        second.grad = first.grad

    run.change_gradients = share


@change
def gradient_is_sparse(run):
    def make_sparse(params):
        if params[0].grad is not None:
            params[0].grad = params[0].grad.to_sparse()

    run.change_gradients = make_sparse


@change
def data_replaced(run):
    p = run.any_parameter()
    p.data = p.data.clone() + 0.5


@change
def strides_of_a_parameter(run):
    p = next(p for p in flat(run.optimizer) if p.dim() == 2)
    p.data = p.data.t().contiguous().t()
    p.grad = None


@change
def channels_last(run):
    for p in flat(run.optimizer):
        if p.dim() == 4:
            p.data = p.data.contiguous(memory_format=torch.channels_last)
            p.grad = None


def cast(run, dtype):
    for p in flat(run.optimizer):
        p.grad = None
        p.data = p.data.to(dtype)


@change
def float64_or_float32(run):
    cast(run, torch.float32 if flat(run.optimizer)[0].dtype == torch.float64 else torch.float64)


@change
def one_parameter_in_float64(run):
    p = run.any_parameter()
    p.grad = None
    p.data = p.data.double()
    return lambda: cast(run, torch.float32)


@change
def parameter_resized(run):
    p = next(p for p in flat(run.optimizer) if p.dim() == 1)
    before, p.grad = p.data, None
    p.data = torch.ones(len(p) + 1, dtype=p.dtype)

    def repair():
        p.grad, p.data = None, before

    return repair


@change
def group_added(run):
    run.optimizer.add_param_group({"params": [Parameter(torch.ones(4, 3)), Parameter(torch.ones(2))]})


@change
def parameter_moved(run):
    groups = run.optimizer.param_groups
    if len(groups[0]["params"]) > 2:
        groups[1]["params"].append(groups[0]["params"].pop())


@change
def boundary_of_groups_moved(run):
    groups = run.optimizer.param_groups
    if len(groups[0]["params"]) > 2:
        groups[1]["params"].insert(0, groups[0]["params"].pop())


@change
def parameters_swapped(run):
    params = run.optimizer.param_groups[0]["params"]
    i, j = [i for i, p in enumerate(params) if p.shape == (4, 3)][:2] if len(params) > 2 else (0, 0)
    params[i], params[j] = params[j], params[i]


@change
def parameter_replaced(run):
    params = run.any_group()["params"]
    params[0] = Parameter(torch.full_like(params[0], 0.25))


@change
def parameter_twice(run):
    params = run.optimizer.param_groups[0]["params"]
    params.append(params[0])
    return params.pop


@change
def group_replaced(run):
    groups = run.optimizer.param_groups
    groups[0] = {**groups[0], "params": list(groups[0]["params"]), "lr": 0.02}


@change
def parameters_not_in_a_list(run):
    groups = run.optimizer.param_groups
    groups[0]["params"] = torch.nn.ParameterList(groups[0]["params"])
    groups[1]["params"] = deque(groups[1]["params"])

    def repair():
        for group in groups[:2]:
            group["params"] = list(group["params"])

    return repair


@change
def global_step_switched(run):
    def switch():
        run.optimizer.enable_global_step = not run.optimizer.enable_global_step

    switch()
    return switch


@change
def group_has_new_key(run):
    run.any_group()["initial_lr"] = run.random.random()


@change
def precision_option_switched_on(run):
    group = run.optimizer.param_groups[0]
    group["stochastic_rounding"] = True
    return lambda: group.pop("stochastic_rounding")


@change
def state_loaded(run):
    saved = copy.deepcopy(run.optimizer.state_dict())
    run.step()
    run.optimizer.load_state_dict(saved)


@change
def state_replaced(run):
    state = run.optimizer.state[run.any_parameter()]
    for name in state:
        state[name] = state[name].clone()


@change
def state_in_other_order(run):
    state = run.optimizer.state[run.any_parameter()]
    items = list(state.items())
    state.clear()
    state.update(reversed(items))


@change
def names_of_states_swapped(run):
    state = run.optimizer.state[run.any_parameter()]
    names = [name for name in ("exp_avg", "exp_avg_sq") if name in state]
    if len(names) == 2:
        state["exp_avg"], state["exp_avg_sq"] = state["exp_avg_sq"].clone(), state["exp_avg"].abs()


@change
def state_lacks_a_key(run):
    p = run.any_parameter()
    before = dict(run.optimizer.state[p])
    if before:
        run.optimizer.state[p].popitem()

    def repair():
        run.optimizer.state[p] = before

    return repair


@change
def state_has_new_key(run):
    state = run.optimizer.state[run.any_parameter()]
    state["mine"] = torch.ones(1)
    return lambda: state.pop("mine", None)


@change
def state_cleared(run):
    run.optimizer.state.clear()


@change
def state_reset(run):
    run.optimizer.reset_state([run.any_parameter()])


@change
def counts_written(run):
    state = run.optimizer.state[run.any_parameter()]
    if "step" in state:
        state["step"].fill_(7)


@change
def deep_copy(run):
    run.optimizer = copy.deepcopy(run.optimizer)


@change
def pickled(run):
    run.optimizer = pickle.loads(pickle.dumps(run.optimizer))


@change
def new_learning_rate(run):
    run.any_group()["lr"] = run.random.random() / 10


@change
def learning_rate_is_zero(run):
    run.any_group()["lr"] = 0.0


@change
def learning_rate_is_an_int(run):
    run.any_group()["lr"] = 1


@change
def learning_rate_is_a_tensor(run):
    run.any_group()["lr"] = torch.tensor(run.random.random() / 10, dtype=torch.float64)


@change
def learning_rate_is_text(run):
    group = run.optimizer.param_groups[-1]
    before, group["lr"] = group["lr"], "fast"  # the groups before it are stepped

    def repair():
        group["lr"] = before

    return repair


@change
def betas_with_a_tensor(run):
    group = run.any_group()
    if "betas" in group:
        group["betas"] = (0.5, torch.tensor(0.75, dtype=torch.float64))


@change
def betas_in_a_list(run):
    group = run.any_group()
    if "betas" in group:
        group["betas"] = [0.0 if run.random.random() < 0.5 else 0.5, 0.9]


@change
def weight_decay_on_or_off(run):
    group = run.any_group()
    if "weight_decay" in group:
        group["weight_decay"] = 0.0 if group["weight_decay"] else 0.2


@change
def maximize(run):
    group = run.any_group()
    if "maximize" in group:
        group["maximize"] = not group["maximize"]


@change
def momentum_or_dampening_off(run):
    group = run.any_group()
    for name in ("dampening", "momentum"):
        if group.get(name):
            group[name] = 0.0
            break


@change
def switch_of_a_state(run):
    group = run.any_group()
    names = [name for name in ("amsgrad", "centered", "nesterov", "correct_bias") if name in group]
    for name in names[:1]:
        group[name] = not group[name]

    def repair():
        for name in names[:1]:
            group[name] = not group[name]

    return repair


@change
def numbers_held_as_tensors(run):
    run.optimizer.hold_tensors()


@change
def hook_writes_the_learning_rate(run):
    def write(optimizer, args, kwargs):
        optimizer.param_groups[0]["lr"] = 0.03

    handle = run.optimizer.register_step_pre_hook(write)
    return handle.remove


@change
def closure(run):
    def compute_loss():
        for p in flat(run.optimizer):
            p.grad = None if p.grad is None else p.grad * 2
        return 1.0

    run.step(compute_loss)


@change
def requires_no_gradient(run):
    p = run.any_parameter()
    p.requires_grad_(False)
    p.grad = None
    return lambda: p.requires_grad_(True)


def pair(name, seed=0):
    return Run(name, True, seed), Run(name, False, seed)


def apply(change, runs):
    """Make a change in both runs, step, repair what it broke, and compare after each step."""
    repairs = [change(run) for run in runs]
    step_and_compare(runs, change.__name__)
    for repair in repairs:
        if repair is not None:
            repair()


def step_and_compare(runs, after):
    errors = [run.step() for run in runs]
    assert errors[0] == errors[1], after
    snapshots = [snapshot(run.optimizer) for run in runs]
    assert not [key for key in differences(*snapshots) if "params" not in key], after


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", CHANGES)
def test_one_change(kind, name):
    runs = pair(name, seed=len(kind))
    for _ in range(2):
        step_and_compare(runs, "the start")
    assert runs[0].prepared_steps == (0 if name == "Adafactor" else 1)  # matrices and vectors are stepped separately
    apply(CHANGES[kind], runs)
    for _ in range(2):
        step_and_compare(runs, kind)
    assert runs[1].prepared_steps == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("seed", range(4))
def test_random_changes(seed, name):
    runs = pair(name, seed)
    choices = random.Random(f"{seed} {name}")
    for _ in range(25):
        apply(CHANGES[choices.choice(list(CHANGES))], runs)
        for _ in range(choices.randrange(3)):
            apply(new_learning_rate, runs)


def count_calls(function):
    """The Python functions of the two packages that a call of `function` calls, itself included."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        module = frame.f_globals.get("__name__", "")
        count += event == "call" and module.partition(".")[0] in ("optim", "timesched")

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def calls_of_a_step(name, tensors, groups):
    """The calls of the fourth step, with a new learning rate before each step."""
    params = [Parameter(torch.ones(8, 8)) for _ in range(tensors)]
    arguments = {"SGD": {"lr": 0.1}, "momentum": {"lr": 0.1, "momentum": 0.9}}.get(name, {})
    class_name = "SGD" if name == "momentum" else name
    optimizer = getattr(optim, class_name)([{"params": params[i::groups]} for i in range(groups)], **arguments)
    for step in range(4):
        for p in params:
            p.grad = torch.ones_like(p)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (step + 1)
        calls = count_calls(optimizer.step)
    return calls


@pytest.mark.parametrize("name", ["AdamW", "Lion", "SGD", "momentum", "RMSprop", "NAdam", "Adagrad"])
def test_calls_of_a_step(name):
    one = calls_of_a_step(name, 12, 1)
    assert one <= 40
    assert calls_of_a_step(name, 100, 1) == one
    for groups in (2, 3):
        assert calls_of_a_step(name, 12, groups) <= one + 30 * (groups - 1)


@pytest.mark.parametrize("name", ["AdamW", "Lion"])
def test_calls_with_a_frozen_parameter(name):
    params = [Parameter(torch.ones(8, 8)) for _ in range(5)]
    optimizer = getattr(optim, name)(params)
    for _ in range(4):
        for p in params[1:]:
            p.grad = torch.ones_like(p)
        calls = count_calls(optimizer.step)
    assert calls <= 45


def test_kinds_that_change_in_every_step_are_prepared_rarely():
    params = [Parameter(torch.ones(2)) for _ in range(6)]
    optimizer = optim.AdamW(params)
    with mock.patch.object(stepper, "prepare_step", wraps=stepper.prepare_step) as prepare:
        for step in range(40):
            for i, p in enumerate(params):
                p.grad = torch.ones(2) if (step + 1) >> i & 1 else None
            optimizer.step()
    assert prepare.call_count == 5  # after the steps 2, 4, 8, 16 and 32


def test_work_that_ranks_share_is_done_in_each_step():
    class SharedLion(optim.Lion):
        calls = 0

        def step_shared(self, works):
            self.calls += 1
            return works

    p = Parameter(torch.ones(3))
    optimizer = SharedLion([p])
    for _ in range(6):
        p.grad = torch.ones(3)
        optimizer.step()
    assert optimizer.calls == 6


def test_a_prepared_step_keeps_no_tensor_alive():
    p = Parameter(torch.ones(3))
    optimizer = optim.AdamW([p])
    for _ in range(3):
        p.grad = torch.ones(3)
        optimizer.step()
    assert optimizer._stepper._prepared is not None
    state = torch.utils.weak.WeakTensorKeyDictionary()
    state[optimizer.state[p]["exp_avg"]] = state[p.grad] = 1
    optimizer.state[p]["exp_avg"], p.grad = torch.zeros(3), None
    assert len(state) == 0
