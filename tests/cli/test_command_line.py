"""The command line: what it prints, the errors, and the exit codes."""

import csv
import datetime
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import optim
from timesched import Clock, CosineAnnealingWithWarmupScheduler, LinearScheduler, SequenceScheduler, bind
from timesched.cli import main

pytest.importorskip("ruamel.yaml")

GOOD = """
max_duration: 100ba
optimizer:
  AdamW: {lr: 1e-3, weight_decay: 0.1}
schedulers:
- WarmupStableDecayLR:
    {learning_rate: 1e-3, total_iters: 1dur, warmup_iters: 10ba, decay_iters: 0.2dur, initial_learning_rate: 1e-4,
     end_learning_rate: 0.0}
"""


def run(capsys, *arguments):
    """The exit code, the output and the errors of a command."""
    code = main([str(each) for each in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def config(tmp_path):
    def write(text, name="run.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def model(tmp_path, monkeypatch):
    (tmp_path / "the_model.py").write_text(
        "import torch\n"
        "def make():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))\n"
        "number = 3\n"
        "def nothing():\n"
        "    return 3\n"
        "def broken():\n"
        "    raise RuntimeError('not today')\n"
        "def leaves():\n"
        "    raise SystemExit(3)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "the_model:make"
    sys.modules.pop("the_model", None)


# show


def test_show_is_the_schedule_at_each_time(capsys):
    text = "CosineAnnealingWithWarmupScheduler('0.1dur', alpha_f=0.1)"
    code, out, err = run(
        capsys, "show", text, "linearscheduler", "--max-duration", "1e12tok", "--samples-per-batch", 512,
        "--tokens-per-sample", 4096, "--ssr", 0.5, "--every", "0.25dur", "--lr", 3e-4, "--format", "csv",
    )  # fmt: skip
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out)))
    clock = Clock("1e12tok", samples_per_batch=512, tokens_per_sample=4096, ssr=0.5)
    cosine = CosineAnnealingWithWarmupScheduler("0.1dur", alpha_f=0.1)
    shares = ("0dur", "0.25dur", "0.5dur", "0.75dur", "1dur")
    assert [float(row[text]) for row in rows] == [3e-4 * cosine.at(t, clock) for t in shares]
    assert [float(row["linearscheduler"]) for row in rows] == [3e-4 * LinearScheduler().at(t, clock) for t in shares]
    assert [int(row["tok"]) for row in rows] == [0, 125 * 10**9, 250 * 10**9, 375 * 10**9, 500 * 10**9]


def test_show_counts_in_any_unit_that_converts(capsys):
    code, out, _ = run(capsys, "show", "LinearScheduler", "--max-duration", "4ep", "--batches-per-epoch", 50,
                       "--every", "1ep", "--unit", "ba", "--format", "json")  # fmt: skip
    assert code == 0
    assert [(row["ba"], row["LinearScheduler"]) for row in json.loads(out)] == [
        (0, 1.0), (50, 0.75), (100, 0.5), (150, 0.25), (200, 0.0)
    ]  # fmt: skip


def test_the_end_of_the_run_is_always_a_row(capsys):
    _, out, _ = run(capsys, "show", "LinearScheduler", "--max-duration", "10ba", "--every", "4ba")
    assert [line.split() for line in out.splitlines()] == [
        ["dur", "ba", "LinearScheduler"], ["0", "0", "1"], ["0.4", "4", "0.6"], ["0.8", "8", "0.2"], ["1", "10", "0"]
    ]  # fmt: skip


def test_composed_schedules_are_read_as_literals(capsys):
    text = "SequenceScheduler([LinearScheduler(0.0, 1.0, '4ba'), LinearScheduler()], milestones=['4ba'])"
    _, out, _ = run(capsys, "show", text, "--max-duration", "10ba", "--every", "2ba", "--format", "csv")
    there = SequenceScheduler([LinearScheduler(0.0, 1.0, "4ba"), LinearScheduler()], milestones=["4ba"])
    found = [float(row[-1]) for row in list(csv.reader(io.StringIO(out)))[1:]]
    assert found == [there.at(f"{t}ba", Clock("10ba")) for t in (0, 2, 4, 6, 8, 10)]


def test_show_has_the_values_that_a_config_writes(capsys, config):
    path = config(GOOD)
    built = optim.build(torch.nn.Linear(2, 2), path)
    written = [built.optimizer.param_groups[0]["lr"]]
    for _ in range(100):
        built.clock.tick()
        built.schedulers[0].step()
        written.append(built.optimizer.param_groups[0]["lr"])
    for name in (path, f"{path}:0"):
        _, out, _ = run(capsys, "show", name, "--every", "1ba", "--format", "csv")
        assert [float(row["lr"]) for row in csv.DictReader(io.StringIO(out))] == written
    assert [row[2] for row in built.table("1ba").rows] == written


def test_a_config_of_several_ranks_is_shown_on_one(capsys, config):
    shown = [run(capsys, "show", config(text)) for text in (GOOD, "process_group: true\nstop_at: 50ba" + GOOD)]
    assert shown[0] == shown[1] and shown[0][0] == 0


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["LinearScheduler"], "LinearScheduler needs a run: give --max-duration"),
        (
            ["LinearSheduler", "--max-duration", "9ba"],
            "there is no schedule 'LinearSheduler': did you mean 'LinearScheduler'",
        ),
        (["__import__('os').getcwd()", "--max-duration", "9ba"], "is no literal"),
        (["LinearScheduler(open('x'))", "--max-duration", "9ba"], "there is no schedule 'open'"),
        (["LinearScheduler(1 +", "--max-duration", "9ba"], "is no call such as"),
        (["[1, 2]", "--max-duration", "9ba"], "is no schedule: write one as"),
        (["LinearScheduler(t_max='3ep')", "--max-duration", "9ba"], "batches_per_epoch"),
        (["LinearScheduler", "--batches-per-epoch", "9"], "give --max-duration"),
        (["LinearScheduler", "--max-duration", "9 batches"], "9 batches"),
        (["LinearScheduler", "--max-duration", "9ba", "--every", "0ba"], "every 0ba: it has to be above 0"),
        (["LinearScheduler", "--max-duration", "9ba", "--unit", "tok"], "samples_per_batch"),
        (["run.cfg"], "run.cfg is no literal"),
        (["missing.yaml"], "No such file or directory: 'missing.yaml'"),
        ([f"LinearScheduler({'-' * 20_000}1)", "--max-duration", "9ba"], "is nested too deeply"),
        (["LinearScheduler(alpha_f=0.1, alpha_f=0.5)", "--max-duration", "9ba"], "write each argument once"),
        (["LinearScheduler(**{'alpha_f': 0.1})", "--max-duration", "9ba"], "write each argument once"),
        (["LinearScheduler({[]: 1})", "--max-duration", "9ba"], "is no literal"),
    ],
)
def test_errors_are_one_line(capsys, arguments, words):
    code, out, err = run(capsys, "show", *arguments)
    assert (code, out) == (2, "") and err.startswith("timesched show: ") and words in err and err.count("\n") == 1


@pytest.mark.parametrize("option", ["--lr=nan", "--lr=inf", "--lr=-1"])
def test_a_learning_rate_is_finite(capsys, option):
    with pytest.raises(SystemExit) as stop:
        run(capsys, "show", "LinearScheduler", "--max-duration", "9ba", option)
    assert stop.value.code == 2 and "is not a finite number of 0 or more" in capsys.readouterr().err


def test_values_that_are_not_finite_are_an_error(capsys):
    _, _, err = run(capsys, "plot", "StepScheduler('1ba', 1e300)", "--max-duration", "9ba")
    assert err == "timesched plot: StepScheduler('1ba', 1e300) is inf at 2ba: only finite values can be drawn.\n"
    steep = "LinearScheduler(alpha_i=1e300, alpha_f=-1e300)"
    code, _, err = run(capsys, "plot", steep, "--max-duration", "9ba", "--lr", "1e8")
    words = "values from -1e+308 to 1e+308 are too far apart to be drawn: scale them down"
    assert (code, err) == (2, f"timesched plot: {words}.\n")
    _, out, _ = run(capsys, "show", "StepScheduler('1ba', 1e300)", "--max-duration", "2ba", "--format", "json")
    assert [row["StepScheduler('1ba', 1e300)"] for row in json.loads(out)][::5] == [1.0, 1e300, None]


TWO_TAGS = """
max_duration: 100ba
optimizer: AdamW
schedulers:
- LinearLR:
    {initial_learning_rate: 0.1, end_learning_rate: 0.0, total_iters: 1dur, param_group_tags: head}
- SequentialLR:
    schedulers:
    - ConstantLR: {learning_rate: 0.2, total_iters: 10, param_group_tags: ['a "b", c', null]}
    - ConstantLR: {learning_rate: 0.3}
    param_group_tags: ['a "b", c', null]
"""


def test_schedulers_of_one_key_are_told_apart_by_their_tags(capsys, config):
    path = config(TWO_TAGS)
    names = ["lr [head]", 'lr [a "b", c, no tags]']
    _, out, _ = run(capsys, "show", path, "--every", "1dur", "--format", "json")
    first = {"dur": 0, "ba": 0, names[0]: 0.1, names[1]: 0.2}
    assert json.loads(out) == [first, {"dur": 1, "ba": 100, names[0]: 0.0, names[1]: 0.3}]
    _, out, _ = run(capsys, "show", path, "--every", "1dur", "--format", "csv")
    assert next(csv.reader(io.StringIO(out))) == ["dur", "ba", *names]
    assert run(capsys, "diff", path, path) == (0, "no difference\n", "")
    assert run(capsys, "check", path)[:2] == (0, "")


def test_several_configs_are_told_apart_and_share_their_unit(capsys, config):
    one, other = config(GOOD, "one.yaml"), config(GOOD.replace("100ba", "200ba"), "other.yaml")
    _, out, _ = run(capsys, "show", one, other, "--every", "0.5dur", "--format", "json")
    rows = json.loads(out)
    # in the second run the decay begins at 160ba
    assert [(row["ba"], row[f"{one} lr"], row[f"{other} lr"]) for row in rows[1:]] == [(50, 1e-3, 1e-3), (100, 0, 1e-3)]
    tokens = config(GOOD.replace("100ba", "1e9tok").replace("10ba", "1e8tok"), "tokens.yaml")
    code, _, err = run(capsys, "plot", one, tokens)
    assert code == 2 and "the runs are counted in ba and tok" in err
    assert run(capsys, "plot", one, tokens, "--unit", "dur")[0] == 0


def test_a_config_without_schedulers(capsys, config):
    path = config("max_duration: 100ba\noptimizer: AdamW")
    code, _, err = run(capsys, "plot", path)
    assert (
        code == 2
        and err
        == f"timesched plot: {path}: 'schedulers' has no entry of that number, or none at all; they count from 0.\n"
    )


def test_errors_name_the_file(capsys, tmp_path, config):
    empty = config("", "empty.yaml")
    assert f"{empty}: config=None: write a mapping" in run(capsys, "show", empty)[2]
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    assert "bytes.yaml is no text: 'utf-8' codec" in run(capsys, "show", tmp_path / "bytes.yaml")[2]


def test_an_entry_that_is_not_there(capsys, config):
    assert "has no entry of that number" in run(capsys, "show", f"{config(GOOD)}:1")[2]


# plot


def test_a_plot_in_text(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    code, out, _ = run(capsys, "plot", "LinearWithWarmupScheduler('0.5dur')", "--max-duration", "100ba")
    lines = out.splitlines()
    assert code == 0 and max(map(len, lines)) <= 60
    assert lines[0].split() == ["warmup", "end"] and lines[-1].strip() == "batches"
    dots = [[column for column, each in enumerate(line) if 0x2800 < ord(each) <= 0x28FF] for line in lines[1:15]]
    # the highest row has the peak in the middle, the lowest one both ends of the run
    assert min(dots[0]) >= 30 and max(dots[0]) <= 36 and min(dots[-1]) == 5 and max(dots[-1]) == 58


def test_several_schedules_in_one_picture(capsys, tmp_path):
    schedules = ["LinearScheduler", "CosineAnnealingScheduler", "MultiStepScheduler(['0.3dur', '0.8dur'])"]
    _, out, _ = run(capsys, "plot", *schedules, "--max-duration", "100ba")
    assert [line.split()[0] for line in out.splitlines()[-3:]] == ["a", "b", "c"] and "\x1b" not in out
    assert out.splitlines()[0].split() == ["milestone", "milestone", "end"]
    pytest.importorskip("matplotlib")
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        path = tmp_path / f"picture{suffix}"
        assert run(capsys, "plot", *schedules, "--max-duration", "100ba", "--out", path) == (0, "", "")
        assert path.read_bytes().startswith(start)


# check


def check(capsys, config, text, *more):
    """The exit code, and what was found."""
    code, out, _ = run(capsys, "check", config(text), *more)
    return code, out.splitlines()


def test_a_good_config_passes(capsys, config, model):
    text = GOOD.replace("weight_decay: 0.1", "weight_decay: 0.1, no_decay: true")
    assert check(capsys, config, text, "--model", model) == (0, [])
    code, out, err = run(capsys, "check", config(text))
    assert (code, out) == (0, "") and "without --model" in err


SEQUENCE = """
max_duration: 100ba
optimizer:
  AdamW: {lr: 1e-3}
schedulers:
- SequentialLR:
    schedulers:
    - LinearLR: {initial_learning_rate: %s, end_learning_rate: 1e-3, total_iters: %s}
    - CosineDecayLR: {initial_learning_rate: %s, end_learning_rate: 0.0, total_iters: %s}
"""
PLAIN = "max_duration: 100ba\noptimizer: {AdamW: {lr: 1e-3}}\nschedulers:\n"


@pytest.mark.parametrize(
    "text, words",
    [
        (SEQUENCE % (0.0, "10ba", 1e-3, "90ba"), ["the first batch has a learning rate of 0"]),
        (SEQUENCE % (1e-4, "10ba", 1e-4, "90ba"), ["a jump from 0.00091 to 0.0001 at 10ba"]),
        (SEQUENCE % (1e-4, "120ba", 1e-3, "90ba"), ["the phase at 120ba is never reached", "at 210ba"]),
        (SEQUENCE % (1e-4, "10ba", 1e-3, "190ba"), ["the last batch has 0.0005495, and the end value 0"]),
        (PLAIN + "- WarmupScheduler: {schedule: ConstantScheduler, t_warmup: 150ba, alpha_s: 0.1}",
         ["the warmup takes 150ba, longer than the run of 100ba"]),
        (PLAIN + "- MultiStepScheduler: {milestones: [50ba, 200ba]}", ["the milestone at 200ba is never reached"]),
        (PLAIN + "- LinearScheduler: {t_max: 10ep}", ["10ep cannot be converted to ba: batches_per_epoch"]),
        (PLAIN + "- LinearScheduler\n- CosineAnnealingScheduler", ["schedulers[1]: 'lr' is bound already"]),
        (PLAIN + "- LinearScheduler: {t_mx: 10ba}", ["did you mean 't_max'?"]),
        (PLAIN + "- MultiplicativeLR: {initial_learning_rate: 1.0, coefficient: 1e100}",
         ["the value is inf at 4ba, where a step stops with an error"]),
        (PLAIN + "- LinearLR: {initial_learning_rate: 1.0, end_learning_rate: -1.0, total_iters: 100}",
         ["the learning rate is -0.02 at 51ba, and steps go uphill from there"]),
        (PLAIN + "- MultiStepScheduler: {milestones: [50ba]}", []),
        (PLAIN + "- CosineAnnealingWarmRestartsScheduler: {t_0: 20ba}", []),
        (PLAIN + "- StepScheduler: {step_size: 20ba}", []),
        (PLAIN + "- LinearScheduler: {alpha_f: 0.1}", []),
        # a warmup of one batch, and the end of the run, are no jumps
        (PLAIN + "- CosineAnnealingWithWarmupScheduler: {t_warmup: 1ba, alpha_s: 0.1}", []),
        (PLAIN + "- WarmupStableDecayScheduler: {t_warmup: 0ba, t_decay: 1ba}", []),
        ("max_duration: 1ba\noptimizer: AdamW\nschedulers: LinearScheduler", []),
        # steep at the beginning of a long run
        ("max_duration: 1e9ba\noptimizer: AdamW\nschedulers:\n"
         "- InverseSquareRootDecayLR: {initial_learning_rate: 0.1, scale: 4.0, warmup_steps: 16}", []),
        # what follows the cooldown is never reached
        (PLAIN + "- CooldownScheduler:\n    {schedule: {CosineAnnealingScheduler: {t_max: 3dur}}, t_start: 50ba, "
         "t_decay: 50ba}", []),
        # a number of steps, and no run
        ("optimizer: AdamW\nschedulers:\n- ConstantLR: {learning_rate: 1e-3}", []),
        ("optimizer: {AdamW: {lr: -1}}\nschedulers: [LinearLR: &a {initial_learning_rate: 0.1, end_learning_rate: 0.0, "
         "total_iters: 9}, CosineDecayWD: {initial_val: 0.1, end_val: 0.0, total_iters: 9}]", ["AdamW: lr=-1"]),
    ],
)  # fmt: skip
def test_what_is_found(capsys, config, text, words):
    code, found = check(capsys, config, text)
    assert (code, len(found)) == (1 if words else 0, len(words)), found
    for line, word in zip(found, words):
        assert word in line


def test_a_config_may_have_any_name(capsys, config, model):
    path = config(GOOD, "run.cfg")
    assert run(capsys, "check", path, "--jump", 90)[0] == 0 and run(capsys, "memory", path, "--model", model)[0] == 0
    code, _, err = run(capsys, "check", "optimizer: {SGD: {lr: 1}}")
    assert code == 2 and "No such file" in err


def test_what_is_found_with_a_model(capsys, config, model):
    text = GOOD.replace("rate: 0.0}", "rate: 0.0, param_group_tags: head}") + "- LinearWD: "
    text += "{initial_val: 0.1, end_val: 0.0, total_iters: 100}\n- ConstantWD: {val: 0.1}"
    code, found = check(capsys, config, text, "--model", model)
    assert code == 1 and len(found) == 3
    assert "'head'" in found[0] and "'weight_decay' of parameter group 0 is bound already, by schedulers[1]" in found[1]
    assert "3 norms and biases of group 0 decay (0.bias, 1.weight, 1.bias)" in found[2]


def test_the_thresholds_of_check(capsys, config):
    jump = SEQUENCE % (1e-4, "10ba", 1e-4, "90ba")
    assert check(capsys, config, jump, "--jump", 95) == (0, [])
    late = SEQUENCE % (1e-4, "10ba", 1e-3, "190ba")
    assert check(capsys, config, late, "--far", 60) == (0, [])


@pytest.mark.parametrize(
    "place, words",
    [
        ("the_model", "write module:name"),
        ("the_model:other", "the_model has no function other"),
        ("the_model:number", "the_model has no function number"),
        ("the_model:nothing", "returned a int, and no torch.nn.Module"),
        ("no_such_module:make", "No module named 'no_such_module'"),
        ("the_model:broken", "--model the_model:broken: RuntimeError: not today"),
        ("the_model:leaves", "--model the_model:leaves: SystemExit: 3"),
    ],
)
def test_models_that_are_none(capsys, config, model, place, words):
    code, _, err = run(capsys, "check", config(GOOD), "--model", place)
    assert code == 2 and words in err


# diff


def test_diff_of_configs(capsys, config):
    one, other = (
        config(GOOD, "a.yaml"),
        config(GOOD.replace("learning_rate: 1e-3, total", "learning_rate: 2e-3, total"), "b.yaml"),
    )
    assert run(capsys, "diff", one, one) == (0, "no difference\n", "")
    code, out, _ = run(capsys, "diff", one, other, "--no-plot")
    assert code == 1 and out.splitlines() == [
        "schedulers[0].WarmupStableDecayLR.learning_rate: 0.001 -> 0.002",
        "lr: the largest difference is 0.001, at 10ba: 0.001 in A, 0.002 in B",
    ]
    assert "a A" in run(capsys, "diff", one, other)[1]


def test_diff_of_runs_in_other_units(capsys, config):
    one = config(GOOD, "a.yaml")
    other = config(GOOD.replace("100ba", "100ep").replace("10ba", "0.2dur"), "b.yaml")
    code, out, _ = run(capsys, "diff", one, other, "--no-plot")
    # halfway through its own warmup, the second is at 0.1 of the run where the first has finished
    assert code == 1 and out.splitlines()[-1].startswith("lr: the largest difference is 0.00045, at 0.1dur: 0.001 in A")


def checkpoint(tmp_path, name, schedule, length="100ba", ticks=3):
    optimizer = optim.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=1e-3)
    clock = Clock(length)
    scheduler = bind(schedule, optimizer, clock) if not isinstance(schedule, type) else schedule(
        optimizer, 0.1, 0.0, "1dur", clock=clock)  # fmt: skip
    for _ in range(ticks):
        clock.tick()
        scheduler.step()
    torch.save({"optimizer": optimizer.state_dict(), "schedulers": [scheduler.state_dict()]}, tmp_path / name)
    return tmp_path / name


def test_diff_of_checkpoints(capsys, tmp_path):
    a = checkpoint(tmp_path, "a.pt", LinearScheduler())
    same = checkpoint(tmp_path, "same.pt", LinearScheduler(), ticks=7)
    assert run(capsys, "diff", a, same) == (0, "no difference\n", "")
    b = checkpoint(tmp_path, "b.pt", LinearScheduler(alpha_f=0.5), "200ba")
    code, out, _ = run(capsys, "diff", a, b, "--no-plot")
    assert code == 1 and out.splitlines() == [
        "schedulers[0].schedule.arguments.alpha_f: 0.0 -> 0.5",
        "schedulers[0].horizon: \"Horizon('100ba')\" -> \"Horizon('200ba')\"",
        "lr: the largest difference is 0.00075, at 100ba: 0 in A, 0.00075 in B",
    ]


def test_values_that_only_one_side_has(capsys, tmp_path):
    paths = [tmp_path / "a.pt", tmp_path / "b.pt"]
    for path, rates in zip(paths, ([1.0], [1.0, 0.1])):
        optimizer = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": lr} for lr in rates])
        torch.save(bind(LinearScheduler(), optimizer, Clock("10ba")).state_dict(), path)
    code, out, err = run(capsys, "diff", *paths)
    assert (code, out) == (1, "state.base[1]: only in B\n") and err.splitlines() == [
        f"timesched diff: the values of {name} are not compared: only one of the two has it"
        for name in ("lr", "lr of group 0", "lr of group 1")
    ]


def test_diff_of_closed_forms_in_checkpoints(capsys, tmp_path, config):
    a = checkpoint(tmp_path, "a.pt", optim.lr_scheduler.LinearLR)
    b = checkpoint(tmp_path, "b.pt", optim.lr_scheduler.CosineDecayLR)
    code, out, _ = run(capsys, "diff", a, b, "--no-plot")
    # half a cosine is furthest from the straight line near 0.22 of the way
    assert code == 1 and out.splitlines() == [
        "schedulers[0].schedule.class: 'LinearLR' -> 'CosineDecayLR'",
        "schedulers[0].schedule.arguments.cycle: only in A",
        "lr: the largest difference is 0.01053, at 22ba: 0.078 in A, 0.08853 in B",
    ]


@pytest.mark.parametrize("length", ["1999ba", "24tok", "1ep"])
def test_the_largest_difference_is_the_largest_of_all_batches(capsys, config, length):
    rates = "\nsamples_per_batch: 1\ntokens_per_sample: 1\nbatches_per_epoch: 211\n"
    entries = ["CosineAnnealingWarmRestartsScheduler: {t_0: 7ba, t_mult: 2}", "PolynomialScheduler: {power: 3}"]
    one, other = (
        config(f"max_duration: {length}{rates}optimizer: {{SGD: {{lr: 1.0}}}}\nschedulers:\n- {entry}", name)
        for entry, name in zip(entries, ("a.yaml", "b.yaml"))
    )
    found = []
    for path in (one, other):
        built = optim.build(torch.nn.Linear(2, 2), path)
        found.append([])
        while not built.clock.done:
            found[-1].append(built.optimizer.param_groups[0]["lr"])
            built.clock.tick()
            built.schedulers[0].step()
        found[-1].append(built.optimizer.param_groups[0]["lr"])
    gaps = [abs(a - b) for a, b in zip(*found)]
    said = run(capsys, "diff", one, other, "--no-plot")[1].splitlines()[-1]
    assert said.startswith(f"lr: the largest difference is {max(gaps):.4g}, at {gaps.index(max(gaps))}ba")


def test_the_largest_difference_is_at_a_jump_in_runs_of_other_units(capsys, config):
    """One batch before the milestone, 0.333, at which no even division of the run lies."""
    text = PLAIN + "- MultiStepScheduler: {milestones: [%s], gamma: 0.01}"
    one, other = config(text % "34ba", "a.yaml"), config((text % "0.335dur").replace("100ba", "1000ep"), "b.yaml")
    _, out, _ = run(capsys, "diff", one, other, "--no-plot")
    assert out.splitlines()[-1] == "lr: the largest difference is 0.00099, at 0.335dur: 0.001 in A, 1e-05 in B"


def test_groups_and_schedulers_of_one_name_are_compared_each_with_itself(capsys, tmp_path):
    clock = Clock("100ba")

    def optimizer():
        rates = [
            {"params": [torch.nn.Parameter(torch.zeros(2))], "lr": lr, "tags": tag}
            for lr, tag in ((1.0, "a"), (0.1, "b"))
        ]
        return optim.SGD(rates, lr=0.1)

    several = bind(LinearScheduler(), optimizer(), clock)
    other = bind(CosineAnnealingWithWarmupScheduler("1ba"), optimizer(), clock)
    tagged = optimizer()
    closed = [
        optim.lr_scheduler.LinearLR(tagged, 0.1, 0.0, 50, param_group_tags="a"),
        optim.lr_scheduler.LinearLR(tagged, 0.2, 0.0, 50, param_group_tags="b"),
    ]
    torch.save([each.state_dict() for each in (several, other, *closed)], tmp_path / "a.pt")
    assert run(capsys, "diff", tmp_path / "a.pt", tmp_path / "a.pt") == (0, "no difference\n", "")
    changed = [each.state_dict() for each in (several, other, *closed)]
    changed[0]["base"] = [1.0, 0.5]
    changed[3]["schedule"]["arguments"]["end_learning_rate"] = 0.1
    torch.save(changed, tmp_path / "b.pt")
    assert run(capsys, "diff", tmp_path / "a.pt", tmp_path / "b.pt", "--no-plot")[1].splitlines()[2:] == [
        "[0], lr of group 1: the largest difference is 0.4, at 0ba: 0.1 in A, 0.5 in B",
        "lr [b]: the largest difference is 0.1, at 50ba: 0 in A, 0.1 in B",
    ]


def test_values_that_a_state_does_not_give_are_not_compared(capsys, tmp_path):
    clock = Clock("100ba")
    optimizer = optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    bound = bind(LinearScheduler(), optimizer, clock).state_dict()
    function = bind(lambda state: 0.5, optimizer, clock).state_dict()
    broken = [
        {**bound, "base": None},
        {**bound, "horizon": f"Horizon('3ba', ssr={'-' * 20_000}1)"},
        {**bound, "horizon": "Horizon('3ba', ssr=Fraction(1, 0))"},
        {"key": "lr", "schedule": {"class": "LinearLR"}, "last_epoch": 0},
        {name: value for name, value in bound.items() if name != "horizon"},
    ]
    torch.save([bound, function, *broken], tmp_path / "a.pt")
    code, out, err = run(capsys, "diff", tmp_path / "a.pt", tmp_path / "a.pt")
    notes = err.splitlines()[: len(broken) + 1]
    assert (code, out) == (0, "no difference\n") and len(err.splitlines()) == 2 * len(notes)
    assert all(f"the values of [{i}] are not compared: " in note for i, note in enumerate(notes, 1))
    assert "is a function" in notes[0] and notes[-1].endswith("give --max-duration.")


def test_checkpoints_with_durations_versions_and_arrays(capsys, tmp_path):
    """As Composer's: nothing else than these is loaded beside plain data."""
    path = checkpoint(tmp_path, "a.pt", LinearScheduler())
    loaded = torch.load(path, weights_only=True)
    more = {"wct": datetime.timedelta(seconds=3), "torch_version": torch.__version__}
    numpy = pytest.importorskip("numpy")
    torch.save({**loaded, **more, "rng": numpy.random.RandomState(0).get_state()}, tmp_path / "b.pt")
    assert run(capsys, "diff", path, tmp_path / "b.pt") == (0, "no difference\n", "")
    torch.save({**loaded, "path": Path("x")}, tmp_path / "c.pt")
    code, _, err = run(capsys, "diff", path, tmp_path / "c.pt")
    assert code == 2 and "c.pt is neither a .yaml config nor a checkpoint of plain data and tensors (Unpickling" in err


def test_files_that_are_no_side_of_a_diff(capsys, tmp_path, config):
    torch.save({"model": torch.zeros(2)}, tmp_path / "weights.pt")
    (tmp_path / "text.pt").write_text("hello")
    one = config(GOOD)
    assert "holds no state of a scheduler" in run(capsys, "diff", one, tmp_path / "weights.pt")[2]
    code, _, err = run(capsys, "diff", one, tmp_path / "text.pt")
    assert code == 2 and "text.pt is neither a .yaml config nor a checkpoint" in err


# memory


def test_memory_is_that_of_the_optimizer(capsys, config, model):
    text = GOOD.replace("weight_decay: 0.1", "weight_decay: 0.1, no_decay: true")
    code, out, _ = run(capsys, "memory", config(text), "--model", model)
    rows = [line.split() for line in out.splitlines()]
    assert code == 0 and rows[0] == ["group", "tags", "parameters", "step", "exp_avg", "exp_avg_sq", "bytes"]
    real = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))
    total = optim.state_bytes(optim.build(real, config(text)).optimizer)
    assert [int(x) for x in rows[-1][1:]] == [4096 + 3 * 64, 16, 4 * 4288, 4 * 4288, total]


TRAINER = """
trainer:
  init:
    max_duration: 100ba
    process_group: true
    seed: 3
    optimizer: {SGD: {lr: 1e-3, momentum: 0.9, adjust_learning_rate: {LayerNorm: 0.5}}}
    schedulers:
    - ScalePerParamLR:
        scheduler:
          LinearLR: {initial_learning_rate: 1e-3, end_learning_rate: 0.0, total_iters: 1dur}
"""


def test_memory_of_what_build_takes(capsys, config, model):
    """A Trainer's file, factors of groups, several ranks."""
    code, out, _ = run(capsys, "memory", config(TRAINER), "--model", model)
    assert code == 0 and out.splitlines()[-1].split() == ["all", "4288", "17152", "17152"]
    bad = config(TRAINER.replace("lr: 1e-3, m", "lr: -1, m"))
    code, _, err = run(capsys, "memory", bad, "--model", model)
    assert code == 2 and "lr=-1: it must be a finite number" in err


# The program


def program(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "timesched", *arguments], capture_output=True, text=True, check=False, **options
    )


def test_the_program_and_its_codes(config, tmp_path):
    shown = program("show", "LinearScheduler", "--max-duration", "2ba", "--every", "1ba", "--format", "csv")
    assert (shown.returncode, shown.stdout) == (0, "dur,ba,LinearScheduler\n0,0,1.0\n0.5,1,0.5\n1,2,0.0\n")
    assert program("check", str(config(SEQUENCE % (0.0, "10ba", 1e-3, "90ba")))).returncode == 1
    missing = program("show")
    assert (missing.returncode, missing.stdout) == (2, "") and missing.stderr.count("\n") == 1
    assert "the following arguments are required: SCHEDULE; timesched show --help says more" in missing.stderr
    # an output that cannot show braille has letters
    plain = program("plot", "LinearScheduler", "--max-duration", "9ba", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert plain.returncode == 0 and "a" in plain.stdout and plain.stdout.isascii()


def test_a_closed_output():
    command = f"{sys.executable} -m timesched plot LinearScheduler --max-duration 9ba >&-"
    closed = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (closed.returncode, closed.stderr) == (0, "")


def test_the_installed_program_finds_a_model_in_its_folder(config, tmp_path):
    """It does not run with `python -m`, which would look there."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "timesched").write_text("from timesched.cli import main\nraise SystemExit(main())")
    (tmp_path / "mine.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(2, 2)\n")
    root = str(Path(__file__).parents[2])
    made = subprocess.run(
        [sys.executable, "bin/timesched", "memory", config(GOOD), "--model", "mine:make"],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert (made.returncode, made.stderr) == (0, "") and made.stdout.splitlines()[-1].split()[:2] == ["all", "6"]


def test_a_reader_that_leaves_early():
    command = f"{sys.executable} -m timesched show LinearScheduler --max-duration 90000ba --every 1ba"
    head = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -1"], capture_output=True, text=True, check=False
    )
    assert (head.returncode, head.stderr) == (0, "") and head.stdout.split() == ["dur", "ba", "LinearScheduler"]


def test_nothing_imports_the_command_line():
    """It imports optim, which timesched itself must not."""
    root = Path(__file__).parents[2]
    inside = [path for path in (root / "timesched").rglob("*.py") if "cli" not in path.parts]
    for path in [*inside, *(root / "optim").rglob("*.py")]:
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if "import" in line]
        modules = [words[1] for words in lines if words[:1] in (["from"], ["import"]) and len(words) > 1]
        if path.name != "__main__.py":
            assert not [each for each in modules if each.startswith("timesched.cli")], path
        if "timesched" in path.relative_to(root).parts:
            assert not [each for each in modules if each.split(".")[0] == "optim"], path
