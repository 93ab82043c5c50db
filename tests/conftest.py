"""Which tests run here, and how hard Hypothesis tries.

No markers: a test that needs Composer lies in tests/integration or tests/parity, one that needs torch_xla in
tests/xla, one that needs transformers, accelerate or lightning in tests/trainers; each is installed or not. (torchtitan
and TRL have no version for Python 3.10, and DeepSpeed is for Linux.) tests/trainers/test_conformance.py runs the
trainers that are installed, Composer too. What needs fake CUDA tensors lies in tests/cuda.
"""

import importlib.util
import os
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from torch.torch_version import TorchVersion

from tests.extent import IS_PART, choose_part
from tools.adapters import TRAINERS

HERE = Path(__file__).parent

HAS_COMPOSER = importlib.util.find_spec("composer") is not None
NEEDS_COMPOSER = ["integration", "parity"]

# Composer's environment, whose torch is the oldest that is supported, runs these and no others: what needs Composer,
# one configuration of each optimizer, and the pages, which in part run only on the newest torch.
WITH_COMPOSER = [*NEEDS_COMPOSER, "optim/test_parity.py", "trainers/test_conformance.py"]
if not IS_PART:
    WITH_COMPOSER.append("docs")
IN_PART = ("optim", "trainers")  # the folders of which it runs a file
PATHS = chain(HERE.iterdir(), *[HERE.glob(f"{name}/*") for name in IN_PART])
WITHOUT = [str(path.relative_to(HERE)) for path in PATHS if path.name not in IN_PART]

HAS_XLA = importlib.util.find_spec("torch_xla") is not None
WITH_A_FILE = (*TRAINERS, "deepspeed", "trl")  # may have a test file of their name
HAS_TRAINERS = all(importlib.util.find_spec(name) for name in ("transformers", "accelerate", "lightning"))

# Fake CUDA tensors need torch's CUDA build, and no GPU; those of torch 2.7 do not know all that the optimizers do.
HAS_FAKE_CUDA = torch.version.cuda is not None and TorchVersion(torch.__version__) >= "2.15"

collect_ignore = [
    *([name for name in WITHOUT if name not in WITH_COMPOSER] if HAS_COMPOSER else NEEDS_COMPOSER),
    *([] if HAS_XLA else ["xla"]),
    *([] if HAS_TRAINERS or HAS_COMPOSER else ["trainers"]),
    "trainers/rows",  # what the tests there import, each for one trainer
    *[f"trainers/test_{name}.py" for name in WITH_A_FILE if importlib.util.find_spec(name) is None],
    *([] if HAS_FAKE_CUDA else ["cuda"]),
]

# "ci" tries the same examples every time, so that a run that passes passes again; "quick" tries
# fewer of them, and "deep" searches with new ones.
# deadline and too_slow measure the machine, not the code; the blob lets a failure be replayed anywhere. The phase
# "explain" traces each line while a failure is made smaller, which takes most of the time of a test that expects one.
settings.register_profile(
    "ci",
    max_examples=100,
    deadline=None,
    print_blob=True,
    derandomize=True,
    phases=[phase for phase in Phase if phase is not Phase.explain],
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", settings.get_profile("ci"), max_examples=20)
settings.register_profile("deep", settings.get_profile("ci"), max_examples=5000, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "ci")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if IS_PART:
        chosen = choose_part(item.nodeid for item in items)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
        items[:] = [item for item in items if item.nodeid in chosen]


def pytest_report_header() -> str:
    if HAS_COMPOSER:
        suite = f"{', '.join(f'tests/{name}' for name in WITH_COMPOSER)}, Composer {version('mosaicml')}"
    else:
        left_out = " and ".join(f"tests/{name}" for name in NEEDS_COMPOSER)
        suite = f"suite without {left_out} (Composer is not installed)"
    rows = "one row in four of the tests with many rows; make test-all runs all of them" if IS_PART else "all rows"
    return f"timesched: {suite}, torch {version('torch')}, {rows}"
