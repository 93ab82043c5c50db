"""The demo as a user runs it: what it prints, writes and refuses."""

import importlib.util
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from timesched import Horizon, LinearScheduler, Timestamp

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "composer_run.py"


def run(*command: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_short_run(tmp_path: Path) -> None:
    done = run(SCRIPT, "--duration", "40000tok", "--ratio", 1, 0.5, "--out", "picture.png", cwd=tmp_path)
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


def test_other_units_and_no_matplotlib(tmp_path: Path) -> None:
    schedule = "multi-step-warmup,milestones=0.5dur:100sp:1ep,gamma=0.5 * polynomial,power=2"
    options = ["--duration", "20ba", "--warmup", "3ba", "--scale-warmup", "--ratio", "1.5", "--schedule", schedule]
    hidden = (  # from the script alone: packages under Composer look for matplotlib by other means
        "import importlib.util, runpy, sys; find = importlib.util.find_spec;"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'matplotlib' else find(name, *rest);"
        f"sys.path.insert(0, {str(SCRIPT.parent)!r}); sys.argv[0] = {str(SCRIPT)!r};"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = run("-c", hidden, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert "the LR of 30 of 30 batches" in done.stdout
    assert "No picture: matplotlib is not installed" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_bad_duration(tmp_path: Path) -> None:
    done = run(SCRIPT, "--duration", "5000", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(r"^composer_run.py: argument --duration: '5000' has no unit: .+\n\Z", done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script without its run, for what needs no process of its own."""
    spec = importlib.util.spec_from_file_location("composer_run", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--duration", "0ba"], "--duration 0ba: it has to be more than 0"),
        (["--duration", "0.5dur"], "--duration 0.5dur: it has to be in ep, ba, sp or tok"),
        (["--ratio", "1", "0"], "--ratio 0.0: it has to be more than 0"),
        (["--ratio", "1", "nan"], "--ratio nan: it has to be more than 0"),
        (["--lr", "inf"], "--lr inf: it has to be more than 0"),
        (["--warmup", "5 ba"], "--warmup: '5 ba' contains spaces"),
        (["--schedule", "cosin"], "there is no schedule 'cosin'"),
        (["--schedule", "linear,alpha=1"], "linear has no 'alpha'"),
        (["--schedule", "linear,t_max=-1ba"], "LinearScheduler.t_max='-1ba'"),
        (["--schedule", "step"], "step needs step_size"),
        (["--schedule", "linear", "--scale-warmup"], "--scale-warmup has no effect"),
        (["--schedule", "linear,t_max=9ba", "--t-max", "8ba"], "--t-max has no effect"),
        (["--out", "nowhere/x.png"], "in a directory that exists"),
    ],
)
def test_mistakes(
    script: ModuleType,
    options: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["composer_run.py", *options])
    with pytest.raises(SystemExit) as stopped:
        script.read_options()
    shown = capsys.readouterr().err
    assert stopped.value.code == 2
    assert message in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("duration", "ratio", "message"),
    [
        ("101ba", 0.5, "101ba becomes 50.5ba, and Composer would cut it to 50ba"),
        ("100ba", 0.29, "100ba becomes 29ba, and Composer would cut it to 28ba"),
        ("1ep", 1.0, "Cannot use warmup scheduler"),
    ],
)
def test_runs_that_composer_would_not_make(script: ModuleType, duration: str, ratio: float, message: str) -> None:
    options = {"t_warmup": "10ba", "t_max": "1dur"}
    schedule = script.read_schedule("cosine-warmup" if ratio != 1 else "cosine-warmup,t_warmup=5sp", options, {})
    with pytest.raises(ValueError, match=re.escape(message)):
        script.plan(script.read_time(duration), ratio, 400, schedule)


def test_check_sees_a_wrong_lr(script: ModuleType) -> None:
    horizon, schedule = Horizon("4ba"), LinearScheduler()
    record = SimpleNamespace(
        batches=4,
        horizon=horizon,
        timestamps=[Timestamp(batch=k) for k in range(4)],
        lrs=[0.5 * schedule.at(f"{k}ba", horizon) for k in (0, 0, 1, 2)],
    )
    assert script.check(record, schedule, 0.5) == 4
    record.lrs[3] = math.nextafter(record.lrs[3], 1)
    with pytest.raises(AssertionError, match="batch 3 was trained with LR"):
        script.check(record, schedule, 0.5)
    record.batches = 5
    with pytest.raises(AssertionError, match="5 batches were trained, and 4 recorded"):
        script.check(record, schedule, 0.5)


def test_help(script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["composer_run.py", "--help"])
    with pytest.raises(SystemExit) as stopped:
        script.read_options()
    shown = capsys.readouterr().out
    assert stopped.value.code == 0
    named = "schedule duration warmup t-max scale-warmup ratio lr batch-size seed out"
    assert " ".join(re.findall(r"^  --(\S+)", shown, re.MULTILINE)) == named
    for name in script.schedules():
        assert name in shown
