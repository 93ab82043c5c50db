"""The examples with Composer as a user runs them: what they print, draw and refuse."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from optim.config import read
from tests.torchrun import ROOT, run_forked

SCRIPT = ROOT / "examples" / "composer_run.py"


def shown_by(script: Path, *options: object, cwd: Path) -> str:
    """What a script prints; it leaves a picture, and nothing else."""
    done = run_forked(script, *options, "--out", "picture.png", cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert [path.name for path in cwd.iterdir()] == ["picture.png"]
    assert (cwd / "picture.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    return done.stdout


def test_the_demo(tmp_path: Path) -> None:
    schedule = "multi-step-warmup,milestones=0.5dur:100sp:1ep,gamma=0.5 * cosine,alpha_f=0.1"
    options = ["--duration", "40000tok", "--warmup", "5000tok", "--scale-warmup", "--schedule", schedule]
    shown = shown_by(SCRIPT, *options, "--ratio", 1, 0.5, cwd=tmp_path)
    assert "Run 2 of 2, ratio 0.5: 20000tok" in shown
    lines = re.findall(r"^ *\d+%  batch +\d+  token .* (\S+) bits/byte +\d+ s$", shown, re.MULTILINE)
    assert len(lines) == 2 * 11  # not on a terminal: the first batch, and one for each tenth of the run
    # 1024 tokens in a batch: a run ends with the batch that reaches its length
    assert re.findall(r"the LR of (\d+) of (\d+) batches", shown) == [("40", "40"), ("20", "20")]
    assert re.search(r"^ratio +batch +sample +token +fraction +LR$", shown, re.MULTILINE)
    assert re.search(r"^ +0\.5 +19 +152 +19456 +0\.973 +\d\.\d{4}e-04$", shown, re.MULTILINE)
    losses = [float(loss) for loss in lines]
    assert losses[10] < losses[0] - 2 and losses[21] < losses[11] - 2
    learned, baseline = re.findall(r"text: (\S+) bits/byte, where .* alone give (\S+)", shown)[0]
    # The text comes with Python. In so short a run, the model of the text of Python 3.10 is still behind, by 0.05.
    assert sys.version_info < (3, 11) or float(learned) < float(baseline)


def test_the_batches_grow_and_the_rate_with_them(tmp_path: Path) -> None:
    options = ["--batch-sizes", "0:4 8K:8 20K:16", "--duration", "50000tok"]
    shown = shown_by(SCRIPT.with_name("batch_ramp.py"), *options, cwd=tmp_path)
    rows = re.findall(r"^token +(\d+)   batch size +(\d+)   LR (\S+)   loss (\S+)$", shown, re.MULTILINE)
    assert len(rows) == len(shown.splitlines()) >= 12
    sizes, rates, losses = ([float(row[i]) for row in rows] for i in (1, 2, 3))
    assert sizes == sorted(sizes) and set(sizes) == {4, 8, 16}
    assert rates[0] == 0.0 and {1e-3, 1.414e-3, 2e-3} <= set(rates) and 0 < rates[-1] < 2e-3
    assert losses[-1] < losses[0]


def test_muon_and_adamw(tmp_path: Path) -> None:
    command = SCRIPT.with_name("muon_run.py"), "--duration", "15ba", "--lrs", 0.004, 1e-6
    done = run_forked(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    losses = [float(loss) for loss in re.findall(r"^ +\S+ +(\d\.\d{3}) +\d+\.\d$", done.stdout, re.MULTILINE)]
    muon, muon_without, adamw, without = losses  # without: the LR is too small to learn anything
    # Bytes are 8 bits before anything is learned. Where Muon's LR is that small, AdamW still trains the rest.
    assert muon < muon_without < 6 and adamw < 6 and without > 7.5
    results = re.findall(r"^(\w+): (\S+) bits/byte on the test text, with LR (.*)$", done.stdout, re.MULTILINE)
    assert [(name, lr) for name, _, lr in results] == [("Muon", "0.004, and AdamW at 0.004"), ("AdamW", "0.004")]
    assert all(float(tested) < 6 for _, tested, _ in results)
    assert "in all 60 batches" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--duration 5000", "argument --duration: '5000' has no unit"),
        ("--duration 0.5dur", "--duration 0.5dur: it must be in ep, ba, sp or tok"),
        ("--ratio 1 nan", "--ratio nan: it must be more than 0"),
        ("--schedule cosin", "there is no schedule 'cosin'"),
        ("--schedule linear,alpha=1", "linear has no 'alpha'"),
        ("--schedule linear --scale-warmup", "--scale-warmup has no effect"),
        ("--out nowhere/x.png", "in a directory that exists"),
        # runs that Composer would not make
        ("--duration 101ba --ratio 0.5", "ratio 0.5: 101ba becomes 50.5ba, and Composer would cut it to 50ba"),
        ("--duration 1ep --schedule cosine-warmup,t_warmup=5sp", "Cannot use warmup scheduler"),
    ],
)
def test_mistakes(options: str, message: str, monkeypatch: Any, capsys: Any) -> None:
    """Said in one line; in this process, as no run begins."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    monkeypatch.setattr(sys, "argv", ["composer_run.py", *options.split()])
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module("composer_run").main()
    shown = capsys.readouterr().err
    assert stopped.value.code == 2 and message in shown and shown.count("\n") == 1


# A model trained from its YAML file, by a loop of its own and by Composer's Trainer


def test_the_run_by_hand_and_by_composer(tmp_path: Path) -> None:
    script, length = SCRIPT.with_name("from_config.py"), 30  # shorter than in the file, where all times are parts of it
    assert read(script.with_suffix(".yaml"))["max_duration"] == "200ba"
    command = script, "--max-duration", f"{length}ba"
    by_hand, by_composer = (run_forked(*command, *more, cwd=tmp_path) for more in ([], ["--composer"]))
    for done in (by_hand, by_composer):
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
    assert by_hand.stdout == by_composer.stdout
    assert list(tmp_path.iterdir()) == []
    groups, planned, table = by_hand.stdout.split("\n\n")
    assert planned.splitlines()[0].split() == ["dur", "ba", "lr", "[blocks]", "weight_decay", "[tables]"]
    assert planned.splitlines()[2].split() == ["0.1", str(length // 10), "0.004", "0.487764"]  # of a cosine from 0.5
    assert [line.split()[1] for line in groups.splitlines()[1:-1]] == ["tables", "blocks", "blocks", "-", "-"]
    head, *lines = table.splitlines()
    assert " ".join(head.split()) == "batch lr tables wd tables lr blocks wd blocks lr no tag wd no tag bits/byte"
    rows = [[float(cell) for cell in line.split()] for line in lines]
    assert [row[0] for row in rows] == [*range(0, length, length // 10), length - 1]
    middle = rows[5]  # the cosine of the tables' decay is half way down; four digits are printed
    assert middle[1:3] == [2e-3, 0.25] and middle[5:7] == [2e-3, 0.1]
    losses = [row[-1] for row in rows]
    # Bytes are 8 bits before anything is learned; how common each is, is worth about 5.
    assert losses[0] > 7.5 and losses[-1] < 4.9, losses
