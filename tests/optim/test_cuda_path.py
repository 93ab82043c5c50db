"""The steps that run on a CUDA GPU, taken on the CPU by telling the code that its tensors lie on one.

tests/cuda counts what such a step launches; here its numbers are compared with those of the CPU's own step.
"""

import copy

import pytest
import torch

import optim
from optim import lamb
from optim.core import execution, known_counts, tensor_lists, update_rule
from tests.optim.problems import assert_close, assert_states_close, give_gradients, ours, parameters
from tests.optim.rows import BY_ID, FULLEST, ROWS

ARRANGED = [(4, 3), (3, 4), (5,), (4, 3), (3, 4), (5,), (4, 3)]  # shapes that come several times, in turn


def as_on_gpu(patch, tensors=False):
    for module in (tensor_lists, execution, update_rule, lamb):
        patch.setattr(module, "on_gpu", lambda xs: bool(xs) and not torch.compiler.is_compiling())
    patch.setattr(update_rule, "readable", lambda work: False)
    if tensors:
        patch.setattr(execution, "_number_if_there", as_tensor)


def as_tensor(rule, value, device):
    """What a float hyperparameter is on a GPU once it is a tensor there."""
    return execution._widened(rule.tensors(value, device), torch.float64, device)


def alike(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)) for shape in ARRANGED
    ]


def made(row, of_one_shape):
    params = alike() if of_one_shape else parameters(row.name)
    if row.name == "Muon":
        params = [p for p in params if p.dim() > 1]
    return ours(row, params), params


def steps(optimizer, params, row, first, last):
    for step in range(first, last + 1):
        give_gradients(params, step, zeros=row.zeros)
        optimizer.step()


FORMS = ["numbers", "tensors", "captured"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_step_is_that_of_the_cpu(row, monkeypatch):
    """Every row in every form; the sets of shapes take turns, and the rows with all state have both in each form."""
    for turn, form in enumerate(FORMS, ROWS.index(row)):
        for of_one_shape in [True, False] if row in FULLEST else [turn % 2 == 0]:
            mine, params = made(row, of_one_shape)
            other, others = made(row, of_one_shape)
            steps(other, others, row, 1, 6)
            with monkeypatch.context() as patch:
                as_on_gpu(patch, form == "tensors")
                if form == "captured":  # the counters may change without the host
                    patch.setattr(known_counts.KnownCounts, "of", lambda self, counters: None)
                steps(mine, params, row, 1, 6)
            assert_states_close(mine, other, 1e-2 if row.name == "Muon" else 1e-12)


def test_it_is_the_step_for_a_gpu_that_is_tested(monkeypatch):
    calls = []
    as_on_gpu(monkeypatch)
    monkeypatch.setattr(update_rule, "on_cuda", lambda work, known, scaling: calls.append(len(work.params)))
    optimizer, params = made(BY_ID["Adam-defaults"], True)
    steps(optimizer, params, BY_ID["Adam-defaults"], 1, 1)
    assert calls == [len(params) - 3]  # three have no gradient in this step


@pytest.mark.parametrize("strided", [False, True], ids=["kernel", "rule"])
@pytest.mark.parametrize(
    "id", ["Adam-amsgrad", "AdamW-defaults", "AdamW-uncorrected", "SGD-momentum", "Adagrad-lr_decay"]
)
def test_a_grad_scaler_leaves_dividing_and_skipping_to_the_step(id, strided, monkeypatch):
    """As GradScaler.step() does it for optimizers that say so: with `grad_scale` and `found_inf` as attributes."""
    row = BY_ID[id]
    as_on_gpu(monkeypatch)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    mine, other = ([torch.nn.Parameter(torch.ones(4, 6)[:, ::2] if strided else torch.ones(4, 3))] for _ in range(2))
    scaled, plain = ours(row, mine), ours(row, other)
    assert scaled._step_supports_amp_scaling
    for step, found_inf in enumerate([0.0, 1.0, 0.0]):
        before = copy.deepcopy((mine, scaled.state_dict()))
        mine[0].grad = torch.full_like(mine[0], (step + 1) * 4.0)
        scaled.grad_scale, scaled.found_inf = torch.tensor(4.0), torch.tensor(found_inf)
        scaled.step()
        del scaled.grad_scale, scaled.found_inf
        if found_inf:
            assert torch.equal(mine[0], before[0][0])
            for name, value in scaled.state[mine[0]].items():
                assert torch.equal(value, before[1]["state"][0][name])
        else:
            other[0].grad = torch.full_like(other[0], step + 1.0)
            plain.step()
    assert_states_close(scaled, plain, 1e-6)
    assert_close(mine[0], other[0], 1e-6)


def test_which_optimizers_take_a_grad_scaler(monkeypatch):
    weight = torch.nn.Parameter(torch.ones(2))
    assert not optim.Adam([weight])._step_supports_amp_scaling  # on the CPU
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    assert optim.Adam([weight])._step_supports_amp_scaling
    assert not optim.RAdam([weight])._step_supports_amp_scaling


class Counts(known_counts.KnownCounts):
    """Counts the reads of the device."""

    reads = 0

    def of(self, counters):
        before = torch.Tensor.tolist
        try:
            torch.Tensor.tolist = lambda x: (setattr(Counts, "reads", Counts.reads + 1), before(x))[1]
            return super().of(counters)
        finally:
            torch.Tensor.tolist = before


@pytest.mark.parametrize("tensors", [False, True], ids=["numbers", "tensors"])
@pytest.mark.parametrize("row", FULLEST, ids=lambda row: row.id)
def test_counters_are_read_after_somebody_wrote_them_and_at_no_other_step(row, tensors, monkeypatch):
    as_on_gpu(monkeypatch, tensors)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(update_rule, "KnownCounts", Counts)
    optimizer, params = made(row, True)
    plain, others = made(row, True)
    Counts.reads = 0
    steps(optimizer, params, row, 1, 4)
    assert Counts.reads == 0
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    steps(optimizer, params, row, 5, 5)
    after_load = Counts.reads
    assert after_load <= 3
    steps(optimizer, params, row, 6, 8)
    assert Counts.reads == after_load
    for step in range(1, 9):
        steps(plain, others, row, step, step)
    assert_states_close(optimizer, plain, 1e-12)
    for one in (optimizer, plain):
        for state in one.state.values():
            if "step" in state:
                state["step"].fill_(2.0)
    steps(optimizer, params, row, 9, 9)
    steps(plain, others, row, 9, 9)
    assert_states_close(optimizer, plain, 1e-12)


def test_a_captured_step_is_never_counted_by_the_host(monkeypatch):
    as_on_gpu(monkeypatch)
    optimizer, params = made(BY_ID["NAdam-defaults"], True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    steps(optimizer, params, BY_ID["NAdam-defaults"], 3, 3)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for p in params:  # what a replay does, without a sign of it
        optimizer.state[p]["step"].data.add_(7)
    assert optimizer._known.of([optimizer.state[params[0]]["step"]]) is None
    optimizer._accelerator_graph_capture_health_check()
    optimizer._cuda_graph_capture_health_check()
