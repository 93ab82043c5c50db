"""README.md: its programs run, and its table has what they do. Two lines for trainers run in the tests of trainers."""

import re
from functools import partial

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import timesched
from tests.docs.tables import DOCS, readme_code, rows
from tests.extent import IS_DEEP
from tests.optim.rows import NOT_IN_TORCH
from timesched.testing import LawBroken, check_schedule_laws

README = (DOCS.parent / "README.md").read_text(encoding="utf-8")
HEADER = ["`batch_size`", "512", "1024", "1024, schedule in steps"]
TABLE = {row[0]: row[1:] for row in rows("../README.md", HEADER)[0]}
POINTS = {"learning rate at 0.2B tokens": 0.2e9, "at 10B tokens": 10e9, "at 18B tokens": 18e9}
STEPS = "steps for 20B tokens"
PEAK = 1e-3
PROGRAM = readme_code("import torch\n")
BACKWARD = "    model(torch.randn(batch_size, 8)).square().mean().backward()\n"


def learning_rates(batch_size):
    """The learning rate of each step of the first program, and what its last line prints."""
    assert PROGRAM.count("batch_size = 512") == PROGRAM.count(BACKWARD) == 1
    program = PROGRAM.replace("batch_size = 512", f"batch_size = {batch_size}")
    return run(program if IS_DEEP else program.replace(BACKWARD, ""))


def run(program):
    used, printed = [], []
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: used.append(optimizer.param_groups[0]["lr"]))
    try:
        exec(program, {"print": lambda *x: printed.append(x)})
    finally:
        hook.remove()
    return used, printed[0]


def test_the_learning_rates_do_not_depend_on_the_gradients():
    """The program as it is, for fewer tokens. The tests of the table leave out the line that makes gradients."""
    program = PROGRAM.replace('"20Btok"', '"20Mtok"')
    used, printed = run(program)
    assert run(program.replace(BACKWARD, "")) == (used, printed)
    assert len(used) == 20 and (str(printed[0]), printed[1]) == ("20ba", 0.0)


def in_steps(total):
    """A scheduler of torch with the same shape over a number of steps: its learning rate at each of them."""

    def factor(step):
        decayed = max(step - 0.8 * total, 0.0) / (0.2 * total)
        return min(step / (0.02 * total), 1.0 - min(decayed, 1.0) ** 0.5)

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    found = []
    for _ in range(total):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return found


@pytest.fixture(scope="module")
def runs():
    return {batch_size: learning_rates(batch_size) for batch_size in (512, 1024)}


def test_the_table_shows_what_the_program_does(runs):
    """The learning rate at a token is that of the batch with this token."""
    steps = {batch_size: len(used) for batch_size, (used, _) in runs.items()}
    assert TABLE[STEPS] == [f"{steps[512]:,}", f"{steps[1024]:,}", f"{steps[1024]:,}"]
    stepped = in_steps(steps[512])
    columns = [(512, runs[512][0]), (1024, runs[1024][0]), (1024, stepped)]
    assert TABLE.keys() == {STEPS, *POINTS}
    for row, token in POINTS.items():
        found = [used[int(token // (batch_size * 2048))] for batch_size, used in columns]
        assert found[0] == found[1]
        assert TABLE[row] == [f"{value:.3g}" for value in found]
    assert stepped[steps[1024] - 1] == PEAK  # where the larger batches end
    claim = f"a run of {steps[512]:,} steps ends after {steps[1024]:,} steps, while its schedule is still at the peak"
    assert claim in " ".join(README.split())


def test_the_program_prints_the_end_of_the_decay(runs):
    for batch_size, (_, (batch, lr)) in runs.items():
        assert (str(batch), lr) == ({512: "19074ba", 1024: "9537ba"}[batch_size], 0.0)


def test_the_property_test_finds_a_broken_law():
    """With fewer examples: tests/laws has all laws of this schedule."""
    names = {"my_schedule": timesched.RexScheduler()}
    exec(readme_code("from timesched.testing"), names)
    names["check_schedule_laws"] = partial(check_schedule_laws, max_examples=200 if IS_DEEP else 20)
    names["test_my_schedule"]()
    names["my_schedule"] = lambda state, ssr=1.0: float(state.timestamp.batch.value < int(15 * ssr))
    with pytest.raises(LawBroken, match="law 'ratio'"):
        names["test_my_schedule"]()


def test_exact_times():
    assert timesched.Horizon("100ba").place("0.29dur") == (29, timesched.TimeUnit.BATCH)


def test_the_optimizer_with_another_formula_than_torch_is_named():
    assert {name for name in NOT_IN_TORCH if hasattr(torch.optim, name)} == {"Adafactor"}
    assert "except for `Adafactor`, which has fairseq's" in " ".join(README.split())


def test_all_extras_are_named():
    project = (DOCS.parent / "pyproject.toml").read_text(encoding="utf-8")
    extras = re.findall(
        r"^(\w+) = \[", project.partition("[project.optional-dependencies]")[2].partition("\n[")[0], re.M
    )
    assert set(re.findall(r"`(\w+)`", README.partition("Extras, ")[2])) == set(extras)


def test_it_is_short():
    """Lists of pages are on the site."""
    assert len(README.splitlines()) <= 110
    assert README.count("```python") == 3
