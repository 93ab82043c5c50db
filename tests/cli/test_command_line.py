"""The command line: what it prints, the errors, and the exit codes."""

import csv
import io
import json
import shlex
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch

import optim
import timesched
from optim.config.names import LR
from optim.config.read import read
from tests.laws.rows import EXAMPLE_CALLS
from tests.torchrun import run_python
from timesched import (
    Clock,
    CosineAnnealingWithWarmupScheduler,
    HalfLife,
    Horizon,
    LinearScheduler,
    SequenceScheduler,
    findings,
)
from timesched.cli import main
from timesched.cli.settings import set_keys
from timesched.reading import SCHEDULE

pytest.importorskip("ruamel.yaml")

ROOT = Path(__file__).parents[2]
GOOD = """
max_duration: 100ba
optimizer:
  AdamW: {lr: 1e-3, weight_decay: 0.1, no_decay: true}
schedulers:
- WarmupStableDecayLR:
    {learning_rate: 1e-3, total_iters: 1dur, warmup_iters: 10ba, decay_iters: 0.2dur, initial_learning_rate: 1e-4,
     end_learning_rate: 0.0}
"""
MODEL = """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))

def nothing():
    return 3

def broken():
    raise RuntimeError('not today')
"""


SHORT = """
optimizer: {SGD: {lr: 1.0}}
schedulers: {LinearWithWarmupScheduler: {t_warmup: 20ba}}
"""


def run(capsys, *arguments):
    """The exit code, the output and the errors of a command."""
    try:
        code = main([str(each) for each in arguments])
    except SystemExit as stop:
        code = stop.code
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
    (tmp_path / "the_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "the_model:make"
    sys.modules.pop("the_model", None)


# show

LINEAR = ["LinearScheduler", "--max-duration", "9ba"]


def test_show_is_the_schedule_at_each_time(capsys):
    text = "CosineAnnealingWithWarmupScheduler('0.1dur', alpha_f=0.1)"
    composed = "SequenceScheduler([LinearScheduler(0.0, 1.0, '0.25dur'), LinearScheduler()], milestones=['0.25dur'])"
    rates = "--samples-per-batch 512 --tokens-per-sample 4096 --ssr 0.5 --every 0.25dur --lr 3e-4 --format csv"
    code, out, err = run(capsys, "show", text, "linear", composed, "--max-duration", "1e12tok", *rates.split())
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out)))
    clock = Clock("1e12tok", samples_per_batch=512, tokens_per_sample=4096, ssr=0.5)
    expected = {
        text: CosineAnnealingWithWarmupScheduler("0.1dur", alpha_f=0.1),
        "LinearScheduler": LinearScheduler(),
        composed: SequenceScheduler([LinearScheduler(0.0, 1.0, "0.25dur"), LinearScheduler()], ["0.25dur"]),
    }
    for name, schedule in expected.items():
        assert [float(row[name]) for row in rows] == [3e-4 * schedule.at(f"{k / 4}dur", clock) for k in range(5)]
    assert [int(row["tok"]) for row in rows] == [k * 125 * 10**9 for k in range(5)]


def test_show_counts_in_any_unit_that_converts(capsys):
    run_in_epochs = "--max-duration 4ep --batches-per-epoch 50 --every 1.5ep --unit ba --format json"
    code, out, _ = run(capsys, "show", "LinearScheduler", *run_in_epochs.split())
    found = [(row["ba"], row["LinearScheduler"]) for row in json.loads(out)]
    assert code == 0 and found == [(0, 1.0), (75, 0.625), (150, 0.25), (200, 0.0)]
    _, out, _ = run(capsys, "show", "LinearScheduler", "--max-duration", "10ba", "--every", "4ba")
    assert " ".join(out.split()) == "dur ba LinearScheduler 0 0 1 0.4 4 0.6 0.8 8 0.2 1 10 0"


def test_options_replace_what_a_config_says_of_the_run_key_by_key(capsys, config, monkeypatch):
    text = "max_duration: 8e4tok\nsamples_per_batch: 8\ntokens_per_sample: 100" + SHORT
    path = config(text)

    def peak_and_end(*options, read=path):
        _, out, _ = run(capsys, "show", read, "--every", "10ba", "--format", "json", *options)
        rows = json.loads(out)
        return rows[1]["tok"], rows[1]["lr"], rows[-1]["tok"]

    assert peak_and_end() == (8000, 0.5, 80000)
    assert peak_and_end("--samples-per-batch", "4") == (4000, 0.5, 80000)  # the warmup is in batches
    assert peak_and_end("--max-duration", "4e4tok") == (8000, 0.5, 40000)
    assert peak_and_end("--ssr", "0.5", "--tokens-per-sample", "50") == (4000, 0.5, 40000)
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert peak_and_end("--samples-per-batch", "4", read="-") == (4000, 0.5, 80000)
    code, out, _ = run(capsys, "check", path, "--max-duration", "8e3tok", "--samples-per-batch", "16")
    assert code == 1 and "schedulers[0], lr: the warmup takes 32000tok, longer than the run of 8000tok" in out


def test_options_may_be_written_as_the_keys_of_a_config_are(capsys):
    dashes = run(capsys, "show", "Linear", "--max-duration", "9ep", "--batches-per-epoch=10", "--unit", "ba")
    assert run(capsys, "show", "Linear", "--max_duration", "9ep", "--batches_per_epoch=10", "--unit", "ba") == dashes
    assert dashes[0] == 0 and run(capsys, "check", "no_such.yaml")[2].endswith("'no_such.yaml'\n")


def test_a_batch_size_schedule_of_a_config(capsys, config):
    path = config("max_duration: 60ba\nsamples_per_batch: {0sp: 8, 160sp: 16}" + SHORT.replace("20ba", "320sp"))
    for options, batches in (([], 30), (["--samples-per-batch", "16"], 20)):
        _, out, _ = run(capsys, "show", path, "--every", "10ba", "--format", "json", *options)
        peak = max(json.loads(out), key=lambda row: row["lr"])
        assert (peak["ba"], peak["lr"]) == (batches, 1.0)  # 320 samples: 20 batches of 8, and 10 of 16


def test_a_schedule_by_name_is_checked_in_the_unit_of_its_run(capsys):
    rates = ["--max-duration", "2e9tok", "--samples-per-batch", "256", "--tokens-per-sample", "2048"]
    code, out, err = run(capsys, "check", "LinearWithWarmup('100ba', t_max='3e9tok', alpha_s=0.1)", *rates)
    late = "the last batch has 0.3394, and the end value 0 comes at 3e9tok, in a run of 2e9tok. End the schedule"
    assert (code, err) == (1, "") and out.startswith(f"SCHEDULE, lr: {late}") and out.count("\n") == 1
    assert run(capsys, "check", "Linear", *rates) == (0, "nothing found\n", "")


def test_every_schedule_is_what_its_call_says(capsys):
    calls = [line for line in EXAMPLE_CALLS if "] * 2" not in line]  # which is no literal
    run_in_epochs = ["--max-duration", "8ep", "--batches-per-epoch", "5", "--every", "3ba", "--format", "csv"]
    code, out, _ = run(capsys, "show", *calls, *run_in_epochs)
    head, *rows = csv.reader(io.StringIO(out))
    assert code == 0 and head == ["dur", "ep", *calls] and len(rows) == 15
    for i, call in enumerate(calls):
        schedule = eval(call, vars(timesched))
        found = [schedule.at(f"{3 * k}ba", Horizon("8ep", batches_per_epoch=5)) for k in range(14)]
        assert [float(row[i + 2]) for row in rows[:-1]] == found, call


def test_closed_forms_are_shown_with_their_own_length_or_on_a_run(capsys):
    for text in ("CosineDecay(0.2, 0.0, 4)", "optim.lr_scheduler.CosineDecayLR(0.2, 0.0, total_iters=4)"):
        _, out, _ = run(capsys, "show", text, "--every", "2ba", "--format", "json")
        assert [row[text] for row in json.loads(out)] == [0.2, pytest.approx(0.1, abs=1e-15), 0.0]
    text = "LinearWD(0.2, 0.0, '0.5dur')"
    _, out, _ = run(capsys, "show", text, "--max-duration", "8ep", "--every", "2ep", "--format", "json")
    assert [row[text] for row in json.loads(out)] == [0.2, 0.1, 0.0, 0.0, 0.0]


def test_help_version_and_list(capsys):
    code, out, err = run(capsys)
    assert (code, err) == (0, "") and out == run(capsys, "--help")[1] and "examples:\n  timesched plot" in out
    assert run(capsys, "--version") == (0, f"timesched {timesched.__version__}\n", "")
    lines = run(capsys, "list")[1].splitlines()
    i = lines.index("LinearScheduler(alpha_i=1.0, alpha_f=0.0, t_max='1dur')")
    assert lines[i + 1] == "    A straight line from `alpha_i` to `alpha_f` at `t_max`, and `alpha_f` after it."
    assert "CosineDecayLR(initial_learning_rate, end_learning_rate, total_iters)" in lines
    listed = {line.partition("(")[0] for line in lines}
    assert {*SCHEDULE.public_classes, *LR.public_classes} <= listed


@pytest.mark.parametrize("command", ["show", "plot", "check"])
def test_examples_of_the_help_run(capsys, config, model, monkeypatch, command):
    path = config("samples_per_batch: 8" + GOOD)
    calls = [line.strip() for line in run(capsys, command, "--help")[1].partition("examples:\n")[2].splitlines()]
    assert len(calls) >= 2
    for call in calls:
        arguments = shlex.split(call.replace("run.yaml", str(path)).replace("model:make", model))[1:]
        code, out, _ = run(capsys, *arguments)
        assert code in (0, 1) and out


def test_the_first_commands_of_the_page_run(capsys, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    page = (ROOT / "docs/command_line.md").read_text(encoding="utf-8")
    calls = page.partition("```\n")[2].partition("```")[0].splitlines()
    assert len(calls) == 5
    monkeypatch.chdir(tmp_path)  # one of them draws lr.svg
    for call in calls:
        code, out, err = run(capsys, *shlex.split(call, comments=True)[1:])
        assert (code, err) == (0, "") and out


def test_show_has_the_values_that_a_config_writes(capsys, config):
    path = config("process_group: true\nstop_at: 50ba" + GOOD)  # it is shown on one rank
    built = optim.build(torch.nn.Linear(2, 2), GOOD)
    written = [built.optimizer.param_groups[0]["lr"]]
    for _ in range(100):
        built.clock.tick()
        built.schedulers[0].step()
        written.append(built.optimizer.param_groups[0]["lr"])
    for name in (path, f"{path}:0"):
        _, out, _ = run(capsys, "show", name, "--every", "1ba", "--format", "csv")
        assert [float(row["lr"]) for row in csv.DictReader(io.StringIO(out))] == written


def test_a_list_is_a_product(capsys):
    run_options = ["--max-duration", "9ba", "--format", "csv"]
    _, product, _ = run(capsys, "show", "Product([Linear(), Rex('9ba')])", *run_options)
    _, of_list, _ = run(capsys, "show", "[Linear(), Rex('9ba')]", *run_options)
    assert of_list.splitlines()[1:] == product.splitlines()[1:] != []  # below the header, which has the text


SETTABLE = """
max_duration: 100ba
optimizer:
  AdamW: {lr: 1e-3, params: [{params: "*bias", weight_decay: 0.1}], adjust_learning_rate: {0.weight: 0.5}}
schedulers:
- LinearScheduler:
- CosineAnnealingScheduler: {key: "betas[0]"}
"""
SETTINGS = [  # each with what it changes in the text
    ("optimizer.AdamW.lr=5e-4", "1e-3", "5e-4"),  # YAML 1.2 reads a number
    ("optimizer.AdamW.eps=1e-6", "lr: 1e-3", "lr: 1e-3, eps: 1e-6"),  # the last key may be new
    ("optimizer.AdamW.params[0].weight_decay=0", "weight_decay: 0.1", "weight_decay: 0"),
    ("optimizer.AdamW.params=[]", '[{params: "*bias", weight_decay: 0.1}]', "[]"),
    ("optimizer.AdamW.adjust_learning_rate.0.weight=2.0", "0.weight: 0.5", "0.weight: 2.0"),  # a key with a dot
    ("schedulers[0].LinearScheduler.t_max=50ba", "LinearScheduler:", "LinearScheduler: {t_max: 50ba}"),  # had none
    ("schedulers[1].CosineAnnealingScheduler={key: weight_decay}", "betas[0]", "weight_decay"),
    ("schedulers[0]={RexScheduler: {}}", "LinearScheduler:", "RexScheduler: {}"),
    ("max_duration=2e4tok", "100ba", "2e4tok"),
    ("samples_per_batch={0sp: 8, 80sp: 16}", "max_d", "samples_per_batch: {0sp: 8, 80sp: 16}\nmax_d"),
]


@pytest.mark.parametrize(("setting", "old", "new"), SETTINGS, ids=[setting for setting, _, _ in SETTINGS])
def test_set_gives_the_config_that_has_the_value(setting, old, new):
    found = read(SETTABLE)
    set_keys(found, [setting])
    assert found == read(SETTABLE.replace(old, new)) != read(SETTABLE)


def test_set_reaches_each_command(capsys, config):
    text = "max_duration: 100ba" + SHORT
    path, changed = config(text), config(text.replace("1.0", "5e-4").replace("20ba", "40ba"), "changed.yaml")
    settings = ["--set", "optimizer.SGD.lr=5e-4", "--set=schedulers.LinearWithWarmupScheduler.t_warmup=40ba"]
    for command in (["show"], ["show", "--format", "csv", "--every", "10ba"], ["plot"], ["check"]):
        code, out, err = run(capsys, *command, path, *settings)
        assert out and (code, out, err) == run(capsys, *command, changed)
        assert out != run(capsys, *command, path)[1] or command == ["check"]
    longer = ["--set", "schedulers.LinearWithWarmupScheduler.t_warmup=200ba"]
    assert "the warmup takes 200ba, longer than the run of 100ba" in run(capsys, "check", path, *longer)[1]
    # an option of the run counts more, as it does for a key that is in the file
    _, out, _ = run(capsys, "show", path, "--set", "max_duration=70ba", "--max-duration", "50ba", "--format", "csv")
    assert out.splitlines()[-1].startswith("1,50,")


PLAIN = "max_duration: 100ba\noptimizer: {AdamW: {lr: 1e-3}}\nschedulers:\n"
CALLS = [
    (["show", "LinearScheduler"], "LinearScheduler: the schedule needs a run."),
    (
        ["show", "LinearSheduler", *LINEAR[1:]],
        "SCHEDULE: there is no scheduler 'LinearSheduler': did you mean 'Linear",
    ),
    (["show", "__import__('os').getcwd()", *LINEAR[1:]], "SCHEDULE: there is no scheduler 'getcwd': there are"),
    (["show", "(lambda x: 1)()", *LINEAR[1:]], "SCHEDULE: (lambda x: 1)() is not a literal"),
    (
        ["show", "cosine", *LINEAR[1:]],
        "'cosine' could mean CosineAnnealingScheduler and CosineAnnealingWarmRestartsSch",
    ),
    (["show", "WSD", *LINEAR[1:]], "WarmupStableDecayScheduler needs 't_warmup'"),
    (["show", "WSD(t_warmpu='1ba')", *LINEAR[1:]], "has no argument 't_warmpu': did you mean 't_warmup'"),
    (["show", "Linear(1, 0, '9ba', 4)", *LINEAR[1:]], "LinearScheduler takes alpha_i, alpha_f, t_max"),
    (["show", "Linear(1, alpha_i=1)", *LINEAR[1:]], "too many arguments. LinearScheduler takes alpha_i"),
    (["check", "Linear"], "Linear: the schedule needs a run."),
    (["show", "LinearScheduler(open('x'))", *LINEAR[1:]], "there is no scheduler 'open'"),
    (["show", "LinearScheduler(1 +", *LINEAR[1:]], "Write a call such as"),
    (["show", "[1, 2]", *LINEAR[1:]], "this is not a schedule. Write"),
    (["show", "LinearScheduler(alpha_f=0.1, alpha_f=0.5)", *LINEAR[1:]], "keyword argument repeated: alpha_f"),
    (["show", "LinearScheduler(**{'alpha_f': 0.1})", *LINEAR[1:]], "has no argument '**'"),
    (["show", "HalfLife.of(0.95)", *LINEAR[1:]], "HalfLife.of() missing 1 required positional argument: 'batch'"),
    (["show", "HalfLife.of(1.5, batch='1ba')", *LINEAR[1:]], "HalfLife.beta=1.5: the value is not below 1"),
    (["show", "Linear.of(0.95, batch='1ba')", *LINEAR[1:]], "there is no scheduler 'of'"),
    (["show", "of(0.95, batch='1ba')", *LINEAR[1:]], "there is no scheduler 'of'"),
    (["show", "NO_RUN", "--ssr", "0.5"], "max_duration: the options of a run need its length."),
    (["show", "GOOD", "--max-duration", "100steps"], "max_duration: '100steps' is not a time: did you mean '100ba'?"),
    (["plot", "GOOD", "--lr", "0.1"], "--lr 0.1: it is for schedules by name, and"),
    (["show", "LinearScheduler", "--max-duration", "9 batches"], "9 batches"),
    (["show", *LINEAR, "--every", "0ba"], "every='0ba': the time is not above 0"),
    (["show", *LINEAR, "--every", "1e-9dur"], "more than 100000"),
    (["show", *LINEAR, "--unit", "tok"], "samples_per_batch"),
    (["show", "run.cfg"], "SCHEDULE='run.cfg': this is not a schedule"),
    (["show", "missing.yaml"], "No such file or directory: 'missing.yaml'"),
    (["show", "GOOD:1"], "GOOD.yaml: schedulers[1]: there is no such entry. The first entry is 0."),
    (["check", "GOOD:1"], "GOOD.yaml: schedulers[1]: there is no such entry. The first entry is 0."),
    (["plot", "NONE"], "NONE.yaml: the config has no 'schedulers'. Add one."),
    (["show", "EMPTY"], "EMPTY.yaml: config=None: this is not a"),
    (["show", "TWO"], "schedulers[0]: BoundLR.key='lr': LinearScheduler("),
    (
        ["plot", "GOOD", "TOKENS"],
        "--unit: the runs are counted in ba and tok, and one axis has one unit. Pass",
    ),
    (["plot", "StepScheduler('1ba', 1e300)", *LINEAR[1:]], "is inf at 2ba: only finite values can be drawn"),
    (["check", "optimizer: {SGD: {lr: 1}}"], "Write a call such as"),
    (["check", "GOOD", "--model", "the_model"], "--model the_model: there is no name. Write module:name"),
    (["check", "GOOD", "--model", "the_model:other"], "AttributeError: module 'the_model' has no attribute 'other'"),
    (["check", "GOOD", "--model", "the_model:nothing"], "it returned an object of type int. Return a torch.nn.Module."),
    (["check", "GOOD", "--model", "no_such_module:make"], "No module named 'no_such_module'"),
    (["check", "GOOD", "--model", "the_model:broken"], "--model the_model:broken: RuntimeError: not today"),
    (["show", "BAD"], "lr=-1: it must be a finite number"),
    # options
    (["show", *LINEAR, "--lr=nan"], "is not a finite number of at least 0"),
    (["show", *LINEAR, "--lr=-1"], "is not a finite number of at least 0"),
    (["show"], "the following arguments are required: SCHEDULE. Run timesched show --help"),
    (["plot", "REX", "--save", "a.svg"], "--save is not an option: did you mean --out? Run timesched plot --help"),
    (["show", "REX", "--batch-size=4"], "--batch-size is not an option: did you mean --samples-per-batch? Run"),
    (["show", "REX", "--max-durations", "4ba"], "--max-durations is not an option: did you mean --max-duration? Run"),
    (["show", "REX", "-x"], "-x is not an option. Run timesched show --help"),
    (["--colour", "show", "REX"], "--colour is not an option. Run timesched --help"),
    (["show", *LINEAR, "--lr", "abc"], "'abc' is not a finite number of at least 0, such as 0.1. Run timesched show"),
    (["show", "Linear", "--max-duration", "-5ba"], "max_duration='-5ba': it is not above 0"),
    (["shwo"], "invalid choice: 'shwo'"),
    # arguments and names of others
    (
        ["show", "Linear(min_lr=0.1)", *LINEAR[1:]],
        "has no argument 'min_lr': did you mean 'alpha_f'? There are alpha_i",
    ),
    (["show", "LinearWithWarmup('2kba')", *LINEAR[1:]], "'2kba' is not a time. Write a number and one of"),
    (
        ["show", "noam", *LINEAR[1:]],
        "there is no scheduler 'noam': there are ChainedLR, ",
    ),
    (
        ["show", "get_cosine_schedule_with_warmup(o, 1, 9)", *LINEAR[1:]],
        "there is no scheduler 'get_cosine_schedule_with_warmup': there are ChainedLR, ",
    ),
    (["show", "TYPO"], "config has the unknown key 'samples_per_bach'"),
    # keys that are set
    (
        ["show", "GOOD", "--set", "optimizer.AdmW.lr=1"],
        "GOOD.yaml: --set optimizer.AdmW.lr: optimizer has no key 'AdmW': did you mean 'AdamW'? There are AdamW.",
    ),
    (["plot", "GOOD", "--set", "optimiser.AdamW.lr=1"], "config has no key 'optimiser': did you mean 'optimizer'?"),
    (["check", "GOOD", "--set", "schedulers[1].x=1"], "schedulers has no entry '[1]': there are [0]."),
    (["check", "GOOD", "--set", "schedulers.x=1"], "schedulers has no entry 'x': there are [0]."),
    (["show", "GOOD", "--set", "optimizer[0].x=1"], "optimizer has no key '[0]': there are AdamW."),
    (["show", "GOOD", "--set", "optimizer.AdamW.lr.x=1"], "optimizer.AdamW.lr=0.001: this value has no keys."),
    (["show", "EMPTY", "--set", "optimizer.AdamW.lr=1"], "config=None: this value has no keys."),
    (["show", "GOOD", "--set", "optimizer.AdamW.lrr=1"], "AdamW: AdamW has no argument 'lrr': did you mean 'lr'?"),
    (["show", "GOOD", "--set", "max_duratoin=1ep"], "config has the unknown key 'max_duratoin': did you mean 'max_d"),
    (["show", "GOOD", "--set", "optimizer.AdamW.lr={"], "--set optimizer.AdamW.lr: the value, line 1, column 2: while"),
    (["show", "GOOD", "--set", "optimizer.AdamW.lr=!!python/name:os.getcwd"], "--set optimizer.AdamW.lr: the value"),
    (["show", "GOOD", "--set", "optimizer.AdamW.lr=__import__('os')"], "AdamW.lr=\"__import__('os')\""),
    (["show", "GOOD", "--set", "optimizer.AdamW.lr"], "--set optimizer.AdamW.lr: there is no value. Write it as in"),
    (["show", "GOOD", "--set", "=3"], "--set =3: there is no value."),
    (["show", *LINEAR, "--set", "lr=3"], "--set lr=3: it is for configs, and LinearScheduler is none."),
    (["show", "GOOD", "Linear", "--set", "max_duration=80ba"], "it is for configs, and Linear is none."),
]
TWO = "- LinearScheduler: {}\n- CosineAnnealingScheduler: {}"
FILES = {
    "GOOD": GOOD,
    "NONE": "max_duration: 100ba\noptimizer: {AdamW: {}}",
    "NO_RUN": "optimizer: {AdamW: {}}\nschedulers: {ConstantLR: {learning_rate: 0.1}}",
    "EMPTY": "",
    "TWO": PLAIN + TWO,
    "TOKENS": GOOD.replace("100ba", "1e9tok").replace("10ba", "1e8tok"),
    "TYPO": f"samples_per_bach: 8{GOOD}",
    "BAD": GOOD.replace("lr: 1e-3, w", "lr: -1, w"),
}


@pytest.mark.parametrize("arguments, words", CALLS, ids=range(len(CALLS)))
def test_errors_are_one_line(capsys, config, model, arguments, words):
    files = {name: str(config(text, f"{name}.yaml")) for name, text in FILES.items()}
    files["GOOD:1"] = f"{files['GOOD']}:1"
    code, out, err = run(capsys, *(files.get(each, each) for each in arguments))
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert err.startswith(("timesched: ", f"timesched {arguments[0]}: ")) and words in err


TWO_TAGS = """
- LinearLR: {initial_learning_rate: 0.1, end_learning_rate: 0.0, total_iters: 1dur, param_group_tags: head}
- SequentialLR:
    schedulers:
    - ConstantLR: {learning_rate: 0.2, total_iters: 10, param_group_tags: ['a "b", c', null]}
    - ConstantLR: {learning_rate: 0.3}
    param_group_tags: ['a "b", c', null]
"""


def test_lines_are_told_apart(capsys, config):
    """Schedulers of one key by their tags, configs by their names; runs of other units share one axis."""
    path = config(PLAIN + TWO_TAGS)
    names = ["lr [head]", 'lr [a "b", c, no tags]']
    _, out, _ = run(capsys, "show", path, "--every", "1dur", "--format", "json")
    first = {"dur": 0, "ba": 0, names[0]: 0.1, names[1]: 0.2}
    assert json.loads(out) == [first, {"dur": 1, "ba": 100, names[0]: 0.0, names[1]: 0.3}]
    _, out, _ = run(capsys, "show", path, "--every", "1dur", "--format", "csv")
    assert next(csv.reader(io.StringIO(out))) == ["dur", "ba", *names]
    assert run(capsys, "check", path)[:2] == (0, "nothing found\n")
    one, other = config(GOOD, "one.yaml"), config(GOOD.replace("100ba", "200ba"), "other.yaml")
    _, out, _ = run(capsys, "show", one, other, "--every", "0.5dur", "--format", "json")
    # in the second run the decay begins at 160ba
    found = [(row["ba"], row[f"{one} lr"], row[f"{other} lr"]) for row in json.loads(out)]
    assert found[1:] == [(50, 1e-3, 1e-3), (100, 0, 1e-3)]
    assert run(capsys, "plot", one, config(FILES["TOKENS"], "tokens.yaml"), "--unit", "dur")[0] == 0


# plot


def test_pictures(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "60")
    code, out, _ = run(capsys, "plot", "LinearWithWarmupScheduler('0.5dur')", "--max-duration", "100ba")
    lines = out.splitlines()
    assert code == 0 and max(map(len, lines)) <= 60
    assert lines[0].split() == ["warmup", "end"] and lines[-1].strip() == "batches"
    dots = [[column for column, each in enumerate(line) if 0x2800 < ord(each) <= 0x28FF] for line in lines[1:15]]
    # the highest row has the peak in the middle, the lowest one both ends of the run
    assert min(dots[0]) >= 30 and max(dots[0]) <= 36 and min(dots[-1]) == 5 and max(dots[-1]) == 58
    schedules = ["LinearScheduler", "CosineAnnealingScheduler", "MultiStepScheduler(['0.3dur', '0.8dur'])"]
    _, out, _ = run(capsys, "plot", *schedules, "--max-duration", "100ba")
    assert [line.split()[0] for line in out.splitlines()[-3:]] == ["a", "b", "c"] and "\x1b" not in out
    assert out.splitlines()[0].split() == ["milestone", "milestone", "end"]
    _, out, _ = run(capsys, "plot", "CosineAnnealingWarmRestartsScheduler('100ba')", "--max-duration", "50000ba")
    assert out.splitlines()[1].count("⣿") > 45 and out.splitlines()[14].count("⣿") > 45  # 500 cycles fill the picture
    pytest.importorskip("matplotlib")
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        path = tmp_path / f"picture{suffix}"
        assert run(capsys, "plot", *schedules, "--max-duration", "100ba", "--out", path) == (0, f"wrote {path}\n", "")
        assert path.read_bytes().startswith(start)


TWO_KEYS = PLAIN + "- CosineAnnealingScheduler: {}\n- LinearScheduler: {key: weight_decay}\n"


def test_each_key_of_a_config_has_its_own_panel(config, capsys, tmp_path, monkeypatch):
    """On one axis, a learning rate would be a flat line below a weight decay."""
    monkeypatch.setenv("COLUMNS", "60")
    path = config(TWO_KEYS)
    _, out, _ = run(capsys, "plot", path)
    first, second = out.split("\n\n")
    assert first.startswith("lr\n") and second.startswith("weight_decay\n")
    assert first.count("batches") == second.count("batches") == 1
    pyplot = pytest.importorskip("matplotlib.figure")
    panels = []
    monkeypatch.setattr(pyplot.Figure, "savefig", lambda figure, *_, **__: panels.extend(figure.axes))
    run(capsys, "plot", path, "--out", str(tmp_path / "picture.png"))
    assert [axes.get_ylabel() for axes in panels] == ["learning rate", "weight_decay"]


# check

SEQUENCE = """
- SequentialLR:
    schedulers:
    - LinearLR: {initial_learning_rate: %s, end_learning_rate: 1e-3, total_iters: %s}
    - CosineDecayLR: {initial_learning_rate: %s, end_learning_rate: 0.0, total_iters: %s}
"""
JUMP = PLAIN + SEQUENCE % (1e-4, "10ba", 1e-4, "90ba")
LATE = PLAIN + SEQUENCE % (1e-4, "10ba", 1e-3, "190ba")
COOLDOWN = "- CooldownScheduler: {schedule: {CosineAnnealingScheduler: {t_max: 3dur}}, t_start: 50ba, t_decay: 50ba}"
STEEP = "InverseSquareRootDecayLR: {initial_learning_rate: 0.1, scale: 4.0, warmup_steps: 16}"
ALIAS = "[LinearLR: &a {initial_learning_rate: 0.1, end_learning_rate: 0.0, total_iters: 9}]"


@pytest.mark.parametrize(
    "text, more, words",
    [
        (GOOD, [], []),
        (JUMP, [], ["schedulers[0], lr: the value jumps from 0.001 to 0.0001 at 10ba. Give the phases"]),
        (JUMP, ["--jump", 100], []),
        (LATE, [], ["the last batch has 0.0005495, and the end value 0"]),
        (LATE, ["--far", 60], []),
        (f"optimizer: {{AdamW: {{lr: -1}}}}\nschedulers: {ALIAS}", [], ["AdamW.lr=-1"]),
        # a warmup of one batch, and the end of the run, are no jumps
        ("max_duration: 1ba\noptimizer: {AdamW: {}}\nschedulers: {LinearScheduler: {}}", [], []),
        # steep at the beginning of a long run
        (f"max_duration: 1e9ba\noptimizer: {{AdamW: {{}}}}\nschedulers: [{STEEP}]", [], []),
        # a number of steps, and no run
        ("optimizer: {AdamW: {}}\nschedulers:\n- ConstantLR: {learning_rate: 1e-3}", [], []),
        *(
            (PLAIN + entry, [], words)
            for entry, words in (
                (SEQUENCE % (1e-4, "120ba", 1e-3, "90ba"), ["the phase at 120ba is never reached", "at 210ba"]),
                ("- WarmupScheduler: {schedule: {ConstantScheduler: {}}, t_warmup: 150ba, alpha_s: 0.1}",
                 ["the warmup takes 150ba, longer than the run of 100ba"]),
                ("- MultiStepScheduler: {milestones: [50ba, 200ba]}", ["the milestone at 200ba is never reached"]),
                ("- CyclicScheduler: {t_up: 101ba}", ["the peak at 101ba is never reached in the run of 100ba"]),
                ("- CyclicScheduler: {t_up: 100ba}", []),  # as to find the largest rate that trains
                ("- LinearScheduler: {t_max: 10ep}", ["10ep cannot be converted to ba without batches_per"]),
                (TWO, ["schedulers[0]: BoundLR.key='lr': LinearScheduler("]),
                ("- LinearScheduler: {t_mx: 10ba}", ["did you mean 't_max'?"]),
                ("- MultiplicativeLR: {initial_learning_rate: 1.0, coefficient: 1e100}",
                 ["the value is inf at 4ba, and a step with it raises an error"]),
                ("- LinearLR: {initial_learning_rate: 1.0, end_learning_rate: -1.0, total_iters: 100}",
                 ["the learning rate is -0.02 at 51ba, and steps then go uphill"]),
                ("- LinearScheduler: {alpha_f: 10.0}", ["alpha_f=10 is a multiple of the initial learning rate"]),
                ("- ProductScheduler: {schedules: [ConstantScheduler: {}, LinearScheduler: {alpha_f: 2.0}]}",
                 ["alpha_f=2 is a multiple"]),
                ("- WarmupScheduler: {schedule: {LinearScheduler: {alpha_f: 2.0}}, t_warmup: 10ba, alpha_s: 0.1}",
                 ["alpha_f=2 is a multiple"]),
                ("- LinearScheduler: {alpha_f: 2.0, key: weight_decay}", []),
                ("- MultiStepScheduler: {milestones: [50ba]}", []),
                ("- CosineAnnealingWarmRestartsScheduler: {t_0: 20ba}", []),
                ("- StepScheduler: {step_size: 20ba}", []),
                ("- CosineAnnealingWithWarmupScheduler: {t_warmup: 1ba, alpha_s: 0.1}", []),
                ("- WarmupStableDecayScheduler: {t_warmup: 0ba, t_decay: 1ba}", []),
                (COOLDOWN, []),  # what follows the cooldown is never reached
            )
        ),
    ],
)  # fmt: skip
def test_what_is_found(capsys, config, text, more, words):
    code, out, err = run(capsys, "check", config(text), *more)
    found = out.splitlines()
    assert (code, len(found)) == (1 if words else 0, len(words) or 1) and "without --model" in err
    for line, word in zip(found, words or ["nothing found"]):
        assert word in line


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["CONFIG"], "schedulers[0]"),
        (["WarmupStableDecayScheduler('0.02dur', t_decay='0.2dur')", "--max-duration", "1e6tok"], "SCHEDULE"),
    ],
)
def test_a_first_rate_of_0_is_a_note(capsys, config, arguments, place):
    path = config(PLAIN + SEQUENCE % (0.0, "10ba", 1e-3, "90ba"))
    code, out, _ = run(capsys, "check", *(path if each == "CONFIG" else each for each in arguments))
    note = f"note: {place}, lr: the first batch has a learning rate of 0, and changes nothing. Start above 0, with"
    assert code == 0 and out.startswith(note) and out.count("\n") == 1
    # after what is found
    path = config(PLAIN + SEQUENCE % (0.0, "10ba", 1e-3, "190ba"))
    code, out, _ = run(capsys, "check", path)
    found, last = out.splitlines()
    assert code == 1 and "the last batch has" in found and last.startswith("note: schedulers[0], lr: the first batch")


MANY = """
max_duration: 100bb
samples_per_bach: 8
optimizer: {AdamW: {lr: 1e-3, weight_deacy: 0.1, params: [{params: '*', momentun: 1}, {params: 1}]}}
schedulers:
- LinearSchedular: {}
- LinearScheduler: {t_mx: 10ba, tags: a, param_group_tags: b}
- LinearScheduler: {t_max: 10ba, colour: 1, size: 2}
- LinearLR: {initial_learning_rate: 1, end_learning_rate: 0, total_iters: 2}
"""


def test_all_that_is_wrong_is_found_at_once(capsys, config):
    path = config(MANY)
    code, out, err = run(capsys, "check", path)
    beginnings = [
        "config has the unknown key 'samples_per_bach': did you mean 'samples_per_batch'",
        "optimizer.AdamW.params[0] has 'momentun', which is no hyperparameter. Write 'momentum'.",
        "optimizer.AdamW.params[1]: params has 1, which is no glob",
        "optimizer.AdamW: AdamW has no argument 'weight_deacy': did you mean 'weight_decay'",
        "config: max_duration: '100bb' is not a time",
        "schedulers[0].LinearSchedular: there is no scheduler 'LinearSchedular': did you mean 'LinearScheduler'",
        "schedulers[1].LinearScheduler: 'tags' and 'param_group_tags' mean the same. Leave out one of them.",
        "schedulers[2].LinearScheduler: LinearScheduler has no argument 'colour': there are alpha_i, alpha_f, t_max.",
        "schedulers[2].LinearScheduler: LinearScheduler has no argument 'size': there are alpha_i, alpha_f, t_max.",
    ]
    found = out.splitlines()
    assert code == 1 and len(found) == len(beginnings) and "without an optimizer, the values of schedulers" in err
    for line, beginning in zip(found, beginnings):
        assert line.startswith(beginning)
    code, out, err = run(capsys, "show", path)
    assert (code, out, err.count("\n")) == (2, "", 1) and "'samples_per_bach'" in err and "'size'" in err


def test_where_there_is_no_clock_schedulers_are_not_said_to_lack_one(capsys, config):
    schedulers = "schedulers:\n- LinearScheduler: {}\n- LinearWD: {initial_val: 1, end_val: 0, total_iters: 1dur}"
    path = config(f"max_duration: 100bb\noptimizer: {{AdamW: {{}}}}\n{schedulers}")
    code, out, _ = run(capsys, "check", path)
    assert code == 1 and out.startswith("config: max_duration: '100bb' is not a time") and out.count("\n") == 1


def test_what_is_found_with_a_model(capsys, config, model):
    assert run(capsys, "check", config(GOOD, "run.cfg"), "--model", model) == (0, "nothing found\n", "")  # of any name
    text = GOOD.replace(", no_decay: true", "").replace("rate: 0.0}", "rate: 0.0, param_group_tags: head}")
    text += "- LinearWD: {initial_val: 0.1, end_val: 0.0, total_iters: 100}\n- ConstantWD: {val: 0.1}"
    code, out, _ = run(capsys, "check", config(text), "--model", model)
    found = out.splitlines()
    assert code == 1 and len(found) == 3
    assert "'head'" in found[0] and "schedulers[1]: LinearWD.key='weight_decay'" in found[1]
    assert "norms and biases of group 1 decay (3: 0.bias, 1.weight, 1.bias)" in found[2]


def test_what_build_refuses_with_a_model_is_found(capsys, config, model):
    factors = GOOD.replace("no_decay: true", 'adjust_learning_rate: {"0.*": 0.5}').partition("schedulers")[0]
    code, out, _ = run(capsys, "check", config(factors), "--model", model)
    assert code == 1 and out.startswith("optimizer.AdamW: no scheduler uses the factors")
    unset = 'optimizer: {SGD: {params: {params: "0.*", tag: a}}}\n'
    unset += "schedulers: [{ConstantLR: {learning_rate: 1.0, param_group_tags: a}}, {ConstantWD: {val: 0.1}}]"
    code, out, _ = run(capsys, "check", config(unset), "--model", model, "--max-duration", "9ba")
    assert code == 1 and "optimizer.SGD: no scheduler sets the learning rate of parameter group 1" in out
    # neither is said of a part of a config, or without the groups of a model
    part = run(capsys, "check", f"{config(unset)}:1", "--model", model, "--max-duration", "9ba")
    assert part[0] == 1 and "no scheduler" not in part[1] and "norms and biases" in part[1]
    assert run(capsys, "check", config(unset), "--max-duration", "9ba")[:2] == (0, "nothing found\n")


@pytest.mark.parametrize(
    "text",
    [
        """
trainer:
- trainer:
    init:
      model: {name: gpt2}
      optimizer: {SGD: {}}
      schedulers: {LinearLR: {initial_learning_rate: 1.0, end_learning_rate: 0.0, total_iters: 4}}
      loop: {num_steps: 4}
""",
        """
model: {name: gpt2}
optimizer:
  optimizer_type: SGD
  learning_rate: {scheduler: Linear, initial_learning_rate: 1.0, end_learning_rate: 0.0, total_iters: 4}
runconfig: {max_steps: 4}
""",
    ],
)
def test_trainers_files(capsys, config, model, text):
    path = config(text)
    shown = run(capsys, "show", path, "--every", "0.5dur")
    assert shown == (0, "dur  ba   lr\n  0   0    1\n0.5   2  0.5\n  1   4    0\n", "")
    assert run(capsys, "show", path, "--every", "0.5dur", "--max-duration", "2ba")[1].count("\n") == 4
    assert run(capsys, "check", path, "--model", model) == (0, "nothing found\n", "")


def test_weight_decay_that_is_multiplied(capsys, config, model):
    """A multiple of 0 leaves norms and biases without, and does nothing at all where no group has any."""
    text = """\
max_duration: 100ba
optimizer: {AdamW: {lr: 1.0e-3, weight_decay: 0.1, no_decay: true}}
schedulers: {LinearScheduler: {alpha_f: 0.5, key: weight_decay}}
"""
    assert run(capsys, "check", config(text), "--model", model) == (0, "nothing found\n", "")
    code, out, _ = run(capsys, "check", config(text.replace("0.1,", "0.0,")), "--model", model)
    assert code == 1 and out == (
        "schedulers[0]: weight_decay is 0 in every group that it sets, and a multiple of 0 is 0. Give the optimizer a "
        "weight_decay.\n"
    )


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ("AdamW: {lr: 0.0001}", ["learning rate, 0.0001, is rounded away from bfloat16 weights of 0.03125 and more"]),
        ("AdamW: {lr: 0.002}", ["rounded away from bfloat16 weights of 1 and more, as in group 0"]),
        ("SGD: {lr: 0.1}", []),
        ("AdamW: {lr: 0.0001, master_weights: true}", []),
        ("AdamW: {lr: 0.0001, stochastic_rounding: true, rounding_seed: 3, state_dtype: bfloat16}", []),
        ("AdamW: {lr: 0.0001, master_weights: true, state_dtype: {exp_avg: bfloat16}}", []),
    ],
)
def test_bfloat16_weights_that_a_step_cannot_move(capsys, config, tmp_path, monkeypatch, optimizer, words):
    (tmp_path / "short.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Linear(2, 2, bias=False, dtype=torch.bfloat16)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text = f"max_duration: 10ba\noptimizer: {{{optimizer}}}\nschedulers: {{LinearScheduler: {{alpha_f: 0.5}}}}"
    code, out, err = run(capsys, "check", config(text), "--model", "short:make")
    found = out.splitlines()
    assert (code, len(found), err) == (len(words), 1, "")
    for line, word in zip(found, words or ["nothing found"]):
        assert word in line


@pytest.mark.parametrize(("first", "second", "code"), [("1.0e-2", "1.0e-6", 1), ("1.0e-6", "1.0e-2", 0)])
def test_a_learning_rate_of_each_group(capsys, config, tmp_path, monkeypatch, first, second, code):
    """One schedule controls both groups. The second group has bfloat16 weights, and is checked with its own value."""
    (tmp_path / "mixed.py").write_text(
        "from torch import bfloat16\nfrom torch.nn import Linear, Sequential\ndef make():\n"
        "    return Sequential(Linear(2, 2, bias=False), Linear(2, 2, bias=False, dtype=bfloat16))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text = f"""\
max_duration: 10ba
optimizer: {{AdamW: {{lr: {first}, params: {{params: "1.*", lr: {second}}}}}}}
schedulers: {{LinearScheduler: {{}}}}
"""
    result, out, _ = run(capsys, "check", config(text), "--model", "mixed:make")
    assert (result, out.count("\n")) == (code, 1)
    assert out.startswith("optimizer: a step of the highest learning rate, 1e-06, is" if code else "nothing found")


@pytest.mark.parametrize(
    ("optimizer", "schedule", "rate"),
    [
        ("Muon: {lr: 0.02}", "LinearScheduler: {alpha_f: 0.5}", "0.02"),
        ("Muon: {lr: 0.006}", "LinearScheduler: {alpha_i: 2.0}", "0.012"),  # what the schedule reaches counts
        ("Muon: {lr: 0.02}", "LinearScheduler: {alpha_i: 0.4, alpha_f: 0.1}", None),
        ("NorMuon: {lr: 0.02, adjust_lr_fn: original}", "LinearScheduler: {}", None),
    ],
)
def test_a_learning_rate_of_muon_that_suits_another_scale(
    capsys, config, tmp_path, monkeypatch, optimizer, schedule, rate
):
    (tmp_path / "wide.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(300, 2, bias=False)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(findings, "_given", {})
    text = f"max_duration: 10ba\noptimizer: {{{optimizer}}}\nschedulers: {{{schedule}}}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # `check` prints the finding instead
        code, out, err = run(capsys, "check", config(text), "--model", "wide:make")
    finding = f"optimizer: group 0 has a learning rate of {rate}: with adjust_lr_fn='cerebras', updates are"
    assert (code, err) == (1 if rate else 0, "") and out.count("\n") == 1
    assert out.startswith(finding if rate else "nothing found")


BETAS = "max_duration: {run}\nsamples_per_batch: 8\noptimizer: {{{optimizer}: {{}}}}\nschedulers:\n- {entry}"
STEPS = "MultiStepScheduler: {{milestones: [{at}], gamma: 1.1, key: '{key}'}}"  # of betas[0]: from 0.9 to 0.99
HALVES = (  # 0.9007 and 0.98999
    "SequenceScheduler: {schedules: [HalfLife: {time: 53sp}, HalfLife: {time: 552sp}], milestones: [50ba], "
    "key: 'betas[1]'}"
)


@pytest.mark.parametrize(
    ("optimizer", "entry", "words"),
    [
        ("AdamW", STEPS.format(at="50ba", key="betas[0]"), "betas[0]: after step 51 the average is 2.48 times"),
        ("AdamW", STEPS.format(at="10ba", key="betas[0]"), "betas[0]: after step 11 the average is 6.26 times"),
        ("AdamW", STEPS.format(at="400ba", key="betas[0]"), ""),
        (
            "AdamW",
            "LinearScheduler: {alpha_i: 1.1, alpha_f: 1.0, t_max: 20ba, key: 'betas[0]'}",
            "after step 9 the average is 0.654 times",
        ),
        ("AdamW", "LinearScheduler: {alpha_i: 1.1, alpha_f: 1.0, t_max: 4000ba, key: 'betas[0]'}", ""),
        ("AdamW", HALVES, "betas[1]: after step 51 the average is 2.48 times"),
        ("RAdam", HALVES, "betas[1]: after step 51 the average is 2.48 times"),
        ("AdamW", "HalfLife: {time: 53sp, key: 'betas[1]'}", ""),
        *((each, STEPS.format(at="50ba", key="betas[0]"), "2.48") for each in ("Adam", "RAdam", "Adamax")),
        # whose first moment is corrected by the product of what was used, or not at all
        *((each, STEPS.format(at="50ba", key="betas[0]"), "") for each in ("NAdam", "Lion", "Lamb")),
        ("NAdam", HALVES, "2.48"),
        ("Adamax", HALVES, ""),
        ("Adam", STEPS.format(at="50ba", key="lr"), ""),
    ],
)
def test_betas_that_change_early(capsys, config, optimizer, entry, words):
    text = BETAS.format(run="4000ba", optimizer=optimizer, entry=entry)
    code, out, _ = run(capsys, "check", config(text))
    assert (code, len(out.splitlines())) == (1 if words else 0, 1) and (words or "nothing found") in out


def test_betas_of_groups_with_other_optimizers(capsys, config, tmp_path, monkeypatch):
    """Lion updates the first group of the schedule, and corrects no bias. AdamW updates the second group."""
    (tmp_path / "two.py").write_text(
        "from torch.nn import Linear, Sequential\ndef make():\n"
        "    return Sequential(Linear(2, 2, bias=False), Linear(2, 2, bias=False))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text = f"""\
max_duration: 100ba
optimizer:
  Muon:
    lr: 0.001
    params: [{{params: "0.*", algorithm: lion, betas: [0.8, 0.99]}}, {{params: "1.*", algorithm: adamw}}]
schedulers: {{{STEPS.format(at="10ba", key="betas[0]")}}}
"""
    code, out, _ = run(capsys, "check", config(text), "--model", "two:make")
    assert code == 1 and out.startswith("schedulers[0], betas[0] of group 1: after step 11 the average is 6.26 times")


@pytest.mark.parametrize(("more", "found"), [([], 1), (["--jump", 147], 1), (["--jump", 149], 0)])
def test_how_far_an_average_may_be_off(capsys, config, more, found):
    text = BETAS.format(run="60ba", optimizer="AdamW", entry=STEPS.format(at="50ba", key="betas[0]"))
    code, out, _ = run(capsys, "check", config(text), *more)
    assert code == found and (out == "nothing found\n") == (found == 0)


def test_what_check_says_of_betas_is_what_torchs_adam_does(capsys, config):
    """The first moment of constant gradients, by the step that is named."""
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.Adam([weight])
    for step in range(1, 52):
        optimizer.param_groups[0]["betas"] = beta, _ = (0.9 if step <= 50 else 0.99, 0.999)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    off = optimizer.state[weight]["exp_avg"].item() / (1 - beta**51)
    text = BETAS.format(run="60ba", optimizer="AdamW", entry=STEPS.format(at="50ba", key="betas[0]"))
    assert f"after step 51 the average is {off:.3g} times its correct value" in run(capsys, "check", config(text))[1]
    assert off == pytest.approx(2.5, abs=0.05)


@pytest.mark.parametrize(
    "text",
    [
        *map(repr, (HalfLife("10ba"), HalfLife.of(0.95, batch="0.5Mtok"))),
        "Half.of(batch='10ba', beta=0.95)",
        "timesched.HalfLife.of(0.9, '4sp')",
        repr(SequenceScheduler([HalfLife.of(0.9, batch="1ba"), HalfLife.of(0.99, batch="1ba")], ["50ba"])),
    ],
)
def test_a_half_life_as_its_repr_is_written(capsys, text):
    rates = {"samples_per_batch": 8, "tokens_per_sample": 1000}
    options = [f"--{name.replace('_', '-')}={rate}" for name, rate in rates.items()]
    code, out, _ = run(capsys, "show", text, "--max-duration", "100ba", "--format", "json", "--every", "50ba", *options)
    half_life = eval(text.replace("Half.", "HalfLife."), {"timesched": timesched, **vars(timesched)})
    wanted = [half_life.at(f"{k}ba", Horizon("100ba", **rates)) for k in (0, 50, 100)]
    assert code == 0 and [row[text] for row in json.loads(out)] == wanted


@pytest.mark.parametrize("text", ["halflife('5ba')", "Half('5ba')", "Sequence([half('5ba'), half('9ba')], ['50ba'])"])
def test_a_half_life_by_a_short_name_is_a_value(capsys, text):
    code, out, _ = run(capsys, "show", text, "--max-duration", "100ba", "--format", "csv", "--every", "50ba")
    assert code == 0 and float(out.splitlines()[1].split(",")[-1]) == 0.5**0.2
    assert run(capsys, "check", text, "--max-duration", "100ba")[:2] == (0, "nothing found\n")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            "LinearScheduler: {alpha_i: 2.0, alpha_f: 1.0, key: 'betas[0]'}",
            "it is 1.8 at step 1, and must be at least 0",
        ),
        ("LinearScheduler: {alpha_i: 1.0, alpha_f: -1.0, key: 'betas[0]'}", "it is -0.01"),
        ("ConstantScheduler: {alpha: 1.1111111111111112, key: 'betas[0]'}", "it is 1 at step 1, and"),
    ],
)
def test_betas_that_no_average_has(capsys, config, entry, words):
    code, out, _ = run(capsys, "check", config(BETAS.format(run="100ba", optimizer="AdamW", entry=entry)))
    assert code == 1 and words in out and "math" not in out


@pytest.mark.parametrize(
    ("optimizer", "length", "rates", "place"),
    [
        ("Lion", "100ba", "samples_per_batch: 8", "step 35"),  # it corrects no bias
        ("AdamW", "10000sp", "samples_per_batch: null", "3340sp"),  # whose batches are not known
        ("AdamW", "100000ba", "samples_per_batch: 8", "step 33401"),
    ],
)
def test_a_beta_that_no_average_has_is_found_in_every_run(capsys, config, optimizer, length, rates, place):
    """From 0.9 to 1.2: it is 1 after a third of the run."""
    entry = "LinearScheduler: {alpha_f: 1.3333333333333333, key: 'betas[0]'}"
    text = BETAS.format(run=length, optimizer=optimizer, entry=entry).replace("samples_per_batch: 8", rates)
    code, out, _ = run(capsys, "check", config(text))
    assert code == 1 and len(out.splitlines()) == 1
    assert f"at {place}, and must be at least 0 and below 1. Change the schedule." in out


def test_a_beta_of_1_at_the_end_is_used_by_no_step(capsys, config):
    entry = "LinearScheduler: {alpha_f: 1.1111111111111112, key: 'betas[0]'}"
    text = BETAS.format(run="100ba", optimizer="Lion", entry=entry)
    assert run(capsys, "check", config(text))[:2] == (0, "nothing found\n")


def test_numbers_beyond_a_float_and_an_entry_of_standard_input(capsys, monkeypatch):
    code, _, err = run(capsys, "show", "Linear", "--max-duration", "10ba", "--ssr", "1e308")
    assert code == 2 and err.startswith("timesched show: ")
    monkeypatch.setattr("sys.stdin", io.StringIO("&a {optimizer: *a}\n"))
    code, _, err = run(capsys, "show", "-")
    assert code == 2 and err.startswith("timesched show: ")
    monkeypatch.setattr("sys.stdin", io.StringIO(GOOD))
    assert run(capsys, "show", "-:0", "--every", "50ba")[0] == 0


def test_excluded_tags_without_a_model(capsys, config):
    text = """
max_duration: 100ba
optimizer: {SGD: {lr: 0.1}}
schedulers:
- LinearWithWarmupScheduler: {t_warmup: 20ba, alpha_f: 0.1, tags: ["!head", "!new"]}
- LinearScheduler: {alpha_f: 0.1, tags: head}
"""
    code, out, _ = run(capsys, "show", config(text), "--every", "50ba")
    assert code == 0 and "[!head, !new]" in out.splitlines()[0]


# The program

program = partial(run_python, "-m", "timesched")


def test_the_program_and_its_codes(config):
    assert program("check", config(JUMP)).returncode == 1
    # a reader that leaves early
    command = f"{sys.executable} -m timesched show LinearScheduler --max-duration 9000ba --every 1ba"
    shell = ["bash", "-c", f"set -o pipefail; {command} | head -1"]
    head = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert (head.returncode, head.stderr) == (0, "") and head.stdout.split() == ["dur", "ba", "LinearScheduler"]


@pytest.mark.parametrize("name", ["optim.py", "optim/__init__.py"])
def test_a_module_that_hides_the_package_optim(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("raise SystemExit(5)")
    hidden = program("show", "LinearScheduler", "--max-duration", "2ba", cwd=tmp_path)
    assert (hidden.returncode, hidden.stdout) == (2, "")
    assert hidden.stderr.startswith(f"timesched: {path} hides the package optim of torch-timesched. Rename it, or")


def test_the_installed_program_finds_a_model_in_its_folder(config, tmp_path):
    """It does not run with `python -m`, which would look there."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "timesched").write_text("from timesched.cli import main\nraise SystemExit(main())")
    (tmp_path / "mine.py").write_text(MODEL)
    made = run_python("bin/timesched", "check", config(GOOD), "--model", "mine:make", cwd=tmp_path)
    assert (made.returncode, made.stdout, made.stderr) == (0, "nothing found\n", "")
