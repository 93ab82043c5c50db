"""examples/from_config.py: a model trained from its YAML file, by a loop of its own and by Composer's Trainer."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from optim.config import read

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "from_config.py"
LENGTH = 30  # shorter than in the file, where all times are parts of it


def run(*options: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(SCRIPT), *map(str, options)]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )


def test_the_run_by_hand_and_by_composer(tmp_path: Path) -> None:
    config = read(SCRIPT.with_suffix(".yaml"))
    assert config["max_duration"] == "200ba"
    by_hand, by_composer = (run("--max-duration", f"{LENGTH}ba", *more, cwd=tmp_path) for more in ([], ["--composer"]))
    for done in (by_hand, by_composer):
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
    assert by_hand.stdout == by_composer.stdout
    assert list(tmp_path.iterdir()) == []
    groups, planned, table = by_hand.stdout.split("\n\n")
    assert planned.splitlines()[0].split() == ["dur", "ba", "lr", "[blocks]", "weight_decay", "[tables]"]
    assert planned.splitlines()[2].split() == ["0.1", str(LENGTH // 10), "0.004", "0.487764"]  # of a cosine from 0.5
    assert [line.split()[1] for line in groups.splitlines()[1:-1]] == ["tables", "blocks", "blocks", "-", "-"]
    head, *lines = table.splitlines()
    assert " ".join(head.split()) == "batch lr tables wd tables lr blocks wd blocks lr no tag wd no tag bits/byte"
    rows = [[float(cell) for cell in line.split()] for line in lines]
    assert [row[0] for row in rows] == [*range(0, LENGTH, LENGTH // 10), LENGTH - 1]
    for batch, lr_tables, wd_tables, lr_blocks, wd_blocks, lr_rest, wd_rest, _ in rows:
        assert (lr_tables, lr_rest, wd_blocks, wd_rest) == (2e-3, 2e-3, 0.1, 0.1)
        decay = 0.5 * (1 + math.cos(math.pi * batch / LENGTH)) / 2
        warmup, rest = 0.1 * LENGTH, 0.9 * LENGTH
        cosine = 4e-4 + 3.6e-3 * (1 + math.cos(math.pi * (batch - warmup) / rest)) / 2
        rate = 4e-3 * batch / warmup if batch < warmup else cosine
        assert (wd_tables, lr_blocks) == pytest.approx((decay, rate), rel=1e-3)  # four digits are printed
    losses = [row[-1] for row in rows]
    # Bytes are 8 bits before anything is learned; how common each is, is worth about 5.
    assert losses[0] > 7.5 and losses[-1] < 4.9, losses
