"""torch_xla that is imported after timesched: a scheduler asks for it in `bind`, and in `hold_tensors()`."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys

import torch

import optim
import timesched

assert "torch_xla" not in sys.modules
imports_before_bind = sys.argv[1] == "before bind"
if imports_before_bind:
    import torch_xla
torch.__future__.set_swap_module_params_on_conversion(True)  # model.to("xla") keeps the parameters
model, clock = torch.nn.Linear(4, 2), timesched.Clock("20ba")
optimizer = optim.AdamW(model.parameters(), lr=0.5)
scheduler = timesched.bind(timesched.LinearScheduler(), optimizer, clock)
import torch_xla

from tests.xla.test_training_step import compilations

model.to("xla")
if not imports_before_bind:
    optimizer.hold_tensors()
batch = torch.ones(16, 4).to("xla")
torch_xla.sync()
for step in range(8):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    clock.tick()
    scheduler.step()
    torch_xla.sync()
    if step == 1:  # the first step may have a number, and the next steps have a tensor
        before = compilations()
rate = optimizer.param_groups[0]["lr"]
print(rate.device.type, compilations() - before, float(rate))
"""


@pytest.mark.parametrize("moment", ["before bind", "before hold_tensors"])
def test_a_late_import(moment):
    command = [sys.executable, "-c", PROGRAM, moment]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    device, compilations, rate = process.stdout.split()[-3:]
    assert (device, compilations, float(rate)) == ("xla", "0", pytest.approx(0.5 * (1 - 8 / 20)))
