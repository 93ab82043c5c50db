"""examples/batch_ramp.py: what it prints and draws."""

import re
from pathlib import Path

from tests.integration.resume import ROOT, python


def test_the_batches_grow_and_the_rate_with_them(tmp_path: Path) -> None:
    options = ["--plan", "0:4 8K:8 20K:16", "--duration", "50000tok", "--out", "picture.png"]
    done = python(ROOT / "examples" / "batch_ramp.py", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^token +(\d+)   batch size +(\d+)   LR (\S+)   loss (\S+)$", done.stdout, re.MULTILINE)
    assert len(rows) == len(done.stdout.splitlines()) >= 12
    sizes, rates, losses = ([float(row[i]) for row in rows] for i in (1, 2, 3))
    assert sizes == sorted(sizes) and set(sizes) == {4, 8, 16}
    assert rates[0] == 0.0 and {1e-3, 1.414e-3, 2e-3} <= set(rates) and 0 < rates[-1] < 2e-3
    assert losses[-1] < losses[0]
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
