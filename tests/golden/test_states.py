"""The states of earlier versions load, and the run continues as it did then."""

from pathlib import Path

import pytest
import torch

from tests.golden.states import AFTER, KINDS, STATES
from tests.torchrun import ROOT, python_output

PATHS = sorted(STATES.glob("*.pt"))
FILES = {path.stem: torch.load(path, weights_only=True) for path in PATHS}
CASES = [(file, kind, name) for file, kinds in FILES.items() for kind, cases in kinds.items() for name in cases]


def test_there_are_states():
    assert FILES and len(CASES) > 100


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_fresh_process_loads_each_state(path: Path) -> None:
    """As after a crash: nothing of the run that saved them is in the process."""
    program = (
        f"from pathlib import Path; from tests.golden.states import load_all; print(load_all(Path({str(path)!r})))"
    )
    assert int(python_output("-c", program)) == sum(map(len, FILES[path.stem].values()))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_changelog_names_each_format(path: Path) -> None:
    assert f"have the format of {path.stem}." in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("file", "kind", "name"), CASES)
def test_a_saved_state_continues(file, kind, name):
    """To 1e-12: the last bits of a cosine, and of the sum of a matrix product, differ between processors."""
    saved, loop = FILES[file][kind][name], KINDS[kind]()[name]()
    loop.load(saved["state"])
    seen = loop.run(AFTER)
    if kind == "optimizers":
        bfloat16 = {"rtol": 1e-2, "atol": 1e-3}  # Muon's iterations round in it, in an order that differs
        exact = {"rtol": 1e-9, "atol": 1e-12}
        torch.testing.assert_close(seen, saved["seen"], **bfloat16 if name in ("Muon", "NorMuon") else exact)
    elif kind == "averages":
        torch.testing.assert_close(torch.tensor(seen), torch.tensor(saved["seen"]), rtol=1e-6, atol=0)  # in float32
    else:
        expected = torch.tensor(saved["seen"], dtype=torch.float64)
        torch.testing.assert_close(torch.tensor(seen, dtype=torch.float64), expected, rtol=1e-12, atol=1e-15)
