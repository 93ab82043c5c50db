"""The documents name every optimizer, every schedule and every scheduler."""

import re
from itertools import chain

import pytest
import torch

import optim
import timesched
from optim.scheduler import STEP_METHODS
from tests.docs.tables import DOCS
from tests.optim.signatures import NAMES


def named(page):
    """The names of a page that stand in backticks."""
    code = " ".join(re.findall(r"`([^`\n]+)`", (DOCS / page).read_text(encoding="utf-8")))
    return set(re.findall(r"\w+", code))


def test_optimizers():
    """The page names the optimizers of torch that are missing here, and ours that torch lacks."""
    head = (DOCS / "optimizers.md").read_text(encoding="utf-8").partition("## ")[0]
    missing, ours = re.search("except (.*?), and (.*?), which\\s+torch lacks", head, re.DOTALL).groups()
    torchs = {name for name, cls in vars(torch.optim).items() if isinstance(cls, type)} - {"Optimizer"}
    assert torchs - set(NAMES) == set(re.findall(r"`(\w+)`", missing))
    assert set(NAMES) - torchs - {"Muon"} == set(re.findall(r"`(\w+)`", ours))  # torch 2.9 has Muon


def test_closed_form_schedulers():
    assert named("schedulers.md") >= set(optim.lr_scheduler.__all__) - {"LRScheduler"}
    assert named("differences/cerebras.md") >= set(STEP_METHODS)


@pytest.mark.parametrize("package", [timesched.schedulers, timesched.schedulers.composition])
def test_schedules(package):
    schedules = {name for name in vars(package) if name.endswith("Scheduler")}
    assert schedules and named("loop.md") >= schedules


def test_the_page_of_compatibility_has_the_pinned_and_the_required_versions():
    page = (DOCS / "compatibility.md").read_text(encoding="utf-8")
    pins = [path.read_text(encoding="utf-8") for path in (DOCS.parent / "requirements").glob("*.txt")]
    trainers = r"torch|mosaicml|transformers|trl|lightning|accelerate|torchtitan|torch_xla|ruamel\.yaml"
    pinned = set(chain(*(re.findall(rf"^(?:{trainers})==([\d.]+)", text, re.MULTILINE) for text in pins)))
    assert pinned and {version for version in pinned if version not in page} == set()
    project = (DOCS.parent / "pyproject.toml").read_text(encoding="utf-8")
    extras = dict(re.findall(rf'^\w+ = \["({trainers})(?:\[torch\])?>=([\d.]+)[";]', project, re.MULTILINE))
    assert len(extras) == 7 and all(f"{name} >= {version}" in page for name, version in extras.items())
    assert f"Python >= {re.search('requires-python = .>=([0-9.]+)', project)[1]}" in page
