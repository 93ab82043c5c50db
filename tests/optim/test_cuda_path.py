"""The numbers of a step on a CUDA GPU: with tensors of the CPU that say that they lie there.

tests/cuda counts what such a step launches. What differs from the CPU's own step is that tensors of one shape are
stacked, and that the host keeps the counts and reads them only after somebody else wrote them.
"""

import copy

import pytest
import torch
from torch.nn import Parameter

from tests.optim.compiling import HELD
from tests.optim.problems import assert_states_close, give_gradients, ours
from tests.optim.rows import FULLEST
from tests.optim.signatures import MATRICES, NAMES

ROWS = {"numbers": FULLEST, "tensors": list(HELD.values())}


def parameters(name):
    """Shapes that come several times, in turn."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 3), (3, 4), (5,), (4, 3), (3, 4), (5,), (4, 3)]
    shapes = [shape for shape in shapes if len(shape) > 1 or name not in MATRICES]
    return [Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]


@pytest.mark.parametrize("form", ROWS)
@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_that_of_the_cpu(name, form, monkeypatch):
    row = ROWS[form][NAMES.index(name)]
    trained = []
    for there in (True, False):
        params = parameters(name)
        optimizer = ours(row, params)
        for step in range(1, 7):
            give_gradients(params, step)
            with monkeypatch.context() as patch:
                if there:
                    patch.setattr(torch.Tensor, "is_cuda", True)
                    patch.setattr(torch.Tensor, "is_cpu", False)
                optimizer.step()
            if step == 3:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            for state in optimizer.state.values() if step == 4 else ():
                if "step" in state:
                    state["step"].fill_(2.0)
        trained.append(optimizer)
    assert_states_close(*trained, 1e-2 if name in MATRICES else 1e-12)
