"""What the site makes of signatures and of long names."""

import inspect

import pytest

import optim
import timesched
from tests.docs.tables import extension, rows
from tests.optim.signatures import NAMES

signatures = extension("signatures")
line_breaks = extension("line_breaks")
OPTIMIZERS = [getattr(optim, name) for name in NAMES]
SCHEDULERS = [
    getattr(module, name)
    for module in (optim.lr_scheduler, optim.weight_decay_scheduler)
    for name in module.__all__
    if name not in ("LRScheduler", "WeightDecayScheduler")
]


@pytest.mark.parametrize("cls", [*OPTIMIZERS, *SCHEDULERS], ids=lambda cls: cls.__name__)
def test_all_arguments_have_types(cls):
    """Those in `**options: Unpack[...]` too, of which a plain signature has the names and the defaults alone."""
    shown = signatures.name_options(cls, inspect.signature(cls.__init__)).parameters
    assert [name for name, argument in shown.items() if argument.annotation is argument.empty] == []
    plain = inspect.signature(cls).parameters
    assert [(argument.name, argument.default, argument.kind) for argument in shown.values()] == [
        (argument.name, argument.default, argument.kind) for argument in plain.values()
    ]


def test_the_types_of_options():
    shown = signatures.name_options(optim.AdamW, inspect.signature(optim.AdamW.__init__)).parameters
    assert str(shown["master_weights"]) == "master_weights: bool = False"
    assert str(shown["rounding_seed"]) == "rounding_seed: int = 0"


def test_the_page_of_bind_begins_with_a_sentence_and_an_example():
    lines = inspect.cleandoc(timesched.bind.__doc__).splitlines()
    introduction, others = signatures.split_introduction(lines)
    assert introduction[:3] == ["Bind a schedule to a hyperparameter of an optimizer.", "", ">>> import torch"]
    assert ">>> scheduler = bind(LinearScheduler(), optimizer, clock)" in introduction
    assert others[0].startswith("Each `step()`") and "Args:" in others and "Raises:" in others
    assert sorted(introduction + others) == sorted(lines)


def test_only_functions_with_overloads_have_an_introduction():
    functions = [thing for name in timesched.__all__ if inspect.isfunction(thing := getattr(timesched, name))]
    assert [function for function in functions if signatures.has_overloads(function)] == [timesched.bind]


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("InverseSquareRootWithWarmupScheduler(1)", "Inverse|Square|Root|With|Warmup|Scheduler(|1)"),
        ("torch.optim.lr_scheduler.LambdaLR", "torch.|optim.|lr_scheduler.|LambdaLR"),
        ("get_cosine_schedule_with_warmup", "get_|cosine_|schedule_|with_|warmup"),
        ("betas=(0.9, 0.999)", "betas=(0.9, 0.999)"),
    ],
)
def test_long_names_break(name, broken):
    code = '<span class="pre">{}</span>'
    assert line_breaks.allow_breaks("loop", code.format(name)) == code.format(broken.replace("|", "<wbr>"))


def test_the_lines_to_paste_keep_the_names_of_classes_whole():
    table = rows("which.md", ["you train", "", "line to paste", "recipe, source"])[0]
    lines = [line.strip("`") for _, _, line, _ in table if "Scheduler(" in line]
    assert len(lines) > 10
    for line in lines:
        name = line.partition("(")[0]
        shown = line_breaks.allow_breaks("which", f'<span class="pre">{line}</span>')
        assert shown.startswith(f'<span class="pre">{name}(<wbr>'), shown


def test_numbers_in_the_head_of_a_table_do_not_break():
    assert line_breaks.allow_breaks("loop", "<th>lr 1e-3</th>") == '<th>lr <span class="number">1e-3</span></th>'
