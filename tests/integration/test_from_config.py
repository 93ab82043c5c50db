"""examples/from_config.py: a model trained from its YAML file, by a loop of its own and by Composer's Trainer."""

from __future__ import annotations

import logging
import math
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

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


Main = Callable[..., tuple[object, str, str]]


@pytest.fixture
def main(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Main]:
    """The script in this process, which has imported torch and Composer: its exit status, output and errors."""

    def called(*options: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, options)])
        status: object = 0
        try:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    log, threads = logging.getLogger("composer"), torch.get_num_threads()
    level = log.level
    yield called
    log.setLevel(level)
    torch.set_num_threads(threads)


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


def test_mistakes_in_a_config(main: Main, tmp_path: Path) -> None:
    text = SCRIPT.with_suffix(".yaml").read_text(encoding="utf-8")
    path = tmp_path / "wrong.yaml"
    for config, said in (
        (text.replace("CosineDecayWD", "CosineDecayWDs"), "CosineDecayWD"),
        (text.replace("200ba", "2ep"), "max_duration is 2ep: this script counts batches"),
        ("", "wrong.yaml has no keys: write 'optimizer', "),
        ("- optimizer: SGD", "wrong.yaml has no keys: write 'optimizer', "),
    ):
        assert config != text
        path.write_text(config, encoding="utf-8")
        status, _, errors = main(path)
        assert status == 2
        assert said in errors
        assert errors.count("\n") == 1


def test_a_ratio(main: Main, tmp_path: Path) -> None:
    """Times in batches shrink with the run, by hand and by Composer."""
    text = SCRIPT.with_suffix(".yaml").read_text(encoding="utf-8")
    length = "max_duration: 200ba"
    for written, other in ((length, "ssr: 0.5\nmax_duration: 20ba"), ("0.1dur", "4ba"), ("0.9dur", "16ba")):
        assert text.count(written) == 1
        text = text.replace(written, other)
    path = tmp_path / "ratio.yaml"
    path.write_text(text, encoding="utf-8")
    status, by_hand, _ = main(path)
    assert status == 0
    assert main(path, "--composer")[:2] == (0, by_hand)
    lines = by_hand.split("\n\n")[2].splitlines()[1:]
    rates = [float(line.split()[3]) for line in lines]
    assert len(rates) == 10
    assert rates[:3] == [0.0, 2e-3, 4e-3]  # a warmup of 4ba, which is 2 of these 10
    odd = "from_config.py: 21ba times ssr is 10.5ba: Composer counts whole batches.\n"
    assert main(path, "--composer", "--max-duration", "21ba") == (2, "", odd)
