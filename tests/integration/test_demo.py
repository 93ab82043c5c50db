"""The demo as a user runs it: what it prints, writes and refuses."""

import importlib
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.integration.resume import ROOT, python
from timesched import Horizon, LinearScheduler, Timestamp

SCRIPT = ROOT / "examples" / "composer_run.py"


def test_short_run(tmp_path: Path) -> None:
    schedule = "multi-step-warmup,milestones=0.5dur:100sp:1ep,gamma=0.5 * cosine,alpha_f=0.1"
    options = ["--duration", "40000tok", "--warmup", "5000tok", "--scale-warmup", "--schedule", schedule]
    done = python(SCRIPT, *options, "--ratio", 1, 0.5, "--out", "picture.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert "Run 2 of 2, ratio 0.5: 20000tok" in done.stdout
    shown = re.findall(r"^ *(\d+)%  batch +(\d+)  token .* bits/byte +\d+ s$", done.stdout, re.MULTILINE)
    assert len(shown) == 2 * 11  # not on a terminal: the first batch, and one for each tenth of the run
    # 1024 tokens in a batch: a run ends with the batch that reaches its length
    assert re.findall(r"the LR of (\d+) of (\d+) batches", done.stdout) == [("40", "40"), ("20", "20")]
    assert re.search(r"^ratio +batch +sample +token +fraction +LR$", done.stdout, re.MULTILINE)
    assert re.search(r"^ +0\.5 +19 +152 +19456 +0\.973 +\d\.\d{4}e-04$", done.stdout, re.MULTILINE)
    learned, baseline = re.findall(r"text: (\S+) bits/byte, where .* alone give (\S+)", done.stdout)[0]
    assert float(learned) < float(baseline)
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script without its run, for what needs no process of its own."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("composer_run")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--duration 5000", "argument --duration: '5000' has no unit"),
        ("--duration 0ba", "--duration 0ba: it has to be more than 0"),
        ("--duration 0.5dur", "--duration 0.5dur: it has to be in ep, ba, sp or tok"),
        ("--ratio 1 0", "--ratio 0.0: it has to be more than 0"),
        ("--ratio 1 nan", "--ratio nan: it has to be more than 0"),
        ("--lr inf", "--lr inf: it has to be more than 0"),
        ("--schedule cosin", "there is no schedule 'cosin'"),
        ("--schedule linear,alpha=1", "linear has no 'alpha'"),
        ("--schedule linear,t_max=-1ba", "LinearScheduler.t_max='-1ba'"),
        ("--schedule step", "step needs step_size"),
        ("--schedule linear --scale-warmup", "--scale-warmup has no effect"),
        ("--schedule linear,t_max=9ba --t-max 8ba", "--t-max has no effect"),
        ("--out nowhere/x.png", "in a directory that exists"),
        # runs that Composer would not make
        ("--duration 101ba --ratio 0.5", "ratio 0.5: 101ba becomes 50.5ba, and Composer would cut it to 50ba"),
        ("--duration 100ba --ratio 0.29", "100ba becomes 29ba, and Composer would cut it to 28ba"),
        ("--duration 1ep --schedule cosine-warmup,t_warmup=5sp", "Cannot use warmup scheduler"),
    ],
)
def test_mistakes(options: str, message: str, script: Any, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["composer_run.py", *options.split()])
    with pytest.raises(SystemExit) as stopped:
        script.main()
    shown = capsys.readouterr().err
    assert stopped.value.code == 2
    assert message in shown
    assert shown.count("\n") == 1


def test_check_sees_a_wrong_lr(script: Any) -> None:
    horizon, schedule = Horizon("4ba"), LinearScheduler()
    lrs = [0.5 * schedule.at(f"{k}ba", horizon) for k in (0, 0, 1, 2)]
    record = SimpleNamespace(batches=4, horizon=horizon, timestamps=[Timestamp(batch=k) for k in range(4)], lrs=lrs)
    assert script.check(record, schedule, 0.5) == 4
    lrs[3] = math.nextafter(lrs[3], 1)
    with pytest.raises(AssertionError, match="batch 3 was trained with LR"):
        script.check(record, schedule, 0.5)
    record.batches = 5
    with pytest.raises(AssertionError, match="5 batches were trained, and 4 recorded"):
        script.check(record, schedule, 0.5)


def test_help(script: Any, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["composer_run.py", "--help"])
    with pytest.raises(SystemExit):
        script.main()
    shown = capsys.readouterr().out
    named = "schedule duration warmup t-max scale-warmup ratio lr batch-size seed out"
    assert " ".join(re.findall(r"^  --(\S+)", shown, re.MULTILINE)) == named
    assert all(name in shown for name in script.schedules())
