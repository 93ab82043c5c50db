"""The mistakes that people make first with `optim`: each error is complete, and says what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import optim
from tests.building import sgd
from timesched import Clock

Row = tuple[str, Callable[[], object]]  # the complete text of an error, and the call that raises it

MODEL = torch.nn.Linear(2, 2)
SGD = "optimizer: {SGD: {lr: 0.1}}\n"
RUN = SGD + "max_duration: 9ba\n"
CONSTANT = "ConstantLR: {learning_rate: 0.1}"


def build(config: object) -> object:
    return optim.build(MODEL, config)


OPTIMIZERS: list[Row] = []
PRECISION: list[Row] = []
STATE: list[Row] = []
MUON: list[Row] = []
GROUPS: list[Row] = []
AVERAGES: list[Row] = []
SCHEDULERS: list[Row] = []
CONFIGS: list[Row] = [
    # An entry
    (
        "config has no 'optimizer'. Write one, as in optimizer: {AdamW: {lr: 0.1}}.",
        lambda: build("schedulers: []"),
    ),
    (
        "optimizer='AdamW': this is no entry. Write it as {Name: {argument: value}}.",
        lambda: build("optimizer: AdamW\n"),
    ),
    (
        "optimizer.AdamW=0.001: this is not a mapping. Write arguments, as in {lr: 0.1}.",
        lambda: build("optimizer: {AdamW: 1e-3}"),
    ),
    (
        "optimizer: there is no optimizer 'AdamX': did you mean 'Adamax' or 'Adam' or 'RAdam'? A class of your "
        "own is found once its module is imported.",
        lambda: build("optimizer: {AdamX: {}}"),
    ),
    # An argument of the optimizer, and an option of its groups
    (
        "optimizer.SGD: SGD needs 'lr'. An argument without a default must have a value.",
        lambda: build("optimizer: {SGD: {momentum: 0.9}}"),
    ),
    (
        "optimizer.SGD: SGD: lr='fast' is of type str: it must be a finite number at least 0; pass 0.001, say.",
        lambda: build("optimizer: {SGD: {lr: fast}}"),
    ),
    (
        "optimizer.Adam.correct_bias=False: Adam always corrects the bias. Use AdamW instead.",
        lambda: build("optimizer: {Adam: {correct_bias: false}}"),
    ),
    (
        "optimizer.SGD.params='*bias': pass a list of dicts, as [{'params': '*bias', 'tags': 'bias'}].",
        lambda: build("optimizer: {SGD: {lr: 0.1, params: '*bias'}}"),
    ),
    (
        "optimizer.SGD.params[0] ('*bais'): '*bais' matches no parameter's name; the nearest there are 'bias'.",
        lambda: build("optimizer: {SGD: {lr: 0.1, params: {params: '*bais'}}}"),
    ),
    (
        "optimizer.SGD.params[0]: 'tag' and 'tags' mean the same. Leave out one of them.",
        lambda: build("optimizer: {SGD: {lr: 0.1, params: {params: '*bias', tag: a, tags: b}}}"),
    ),
    (
        "optimizer.SGD: no_decay has 3: pass globs over the names of parameters, as '*.bias'.",
        lambda: build("optimizer: {SGD: {lr: 0.1, no_decay: 3}}"),
    ),
    (
        "optimizer.SGD: decay_tag: tags=3: pass a name, or a list or set of names.",
        lambda: build("optimizer: {SGD: {lr: 0.1, decay_tag: 3}}"),
    ),
    (
        "optimizer.SGD: matrices='adam' of a Linear: pass 'muon' with the model, or None.",
        lambda: build("optimizer: {SGD: {lr: 0.1, matrices: adam}}"),
    ),
    (
        "optimizer.SGD: frozen='no' is of type str: it is True or False.",
        lambda: build("optimizer: {SGD: {lr: 0.1, frozen: no}}"),
    ),
    (
        "optimizer.SGD: no scheduler uses the factors of 'adjust_learning_rate'. Add a learning-rate scheduler of "
        "timesched or optim, or write an 'lr' for these parameters under 'params'.",
        lambda: build("optimizer: {SGD: {lr: 0.1, adjust_learning_rate: {Linear: 0.5}}}"),
    ),
    # A scheduler
    (
        "schedulers[0]='LinearLR': this is no entry. Write it as {Name: {argument: value}}.",
        lambda: build(SGD + "schedulers: LinearLR"),
    ),
    (
        "schedulers[0].Cosine: there is no scheduler 'Cosine': did you mean 'CosineDecayWD' or 'CosineDecayLR'? A "
        "class of your own is found once its module is imported.",
        lambda: build(SGD + "schedulers: {Cosine: {}}"),
    ),
    (
        "schedulers[0].LinearScheduler: a schedule needs a clock. Write 'max_duration' at the top of the config, "
        "or pass clock=timesched.Clock(...).",
        lambda: build(SGD + "schedulers: {LinearScheduler: {}}"),
    ),
    (
        "schedulers[0].LinearScheduler: LinearScheduler has no argument 'min_lr': did you mean 'alpha_f'? There "
        "are alpha_i, alpha_f, t_max. Each alpha is a multiple of the initial value.",
        lambda: build(RUN + "schedulers: {LinearScheduler: {min_lr: 0.1}}"),
    ),
    (
        "schedulers[0].LinearScheduler: Parameter group 0 has no 'lrr' to schedule: its keys are dampening, lr, "
        "maximize, momentum, nesterov, param_names, weight_decay.",
        lambda: build(RUN + "schedulers: {LinearScheduler: {key: lrr}}"),
    ),
    (
        "schedulers[0].LinearScheduler: BoundLR: on_change='keep': it is 'same' or 'new'.",
        lambda: build(RUN + "schedulers: {LinearScheduler: {on_change: keep}}"),
    ),
    (
        "schedulers[0].ConstantLR: No parameter group carries the tag 'head': no group has any.",
        lambda: build(SGD + "schedulers: {ConstantLR: {learning_rate: 0.1, param_group_tags: head}}"),
    ),
    (
        "schedulers[0].SequentialLR.schedulers='LinearLR': this is no list. Write each closed-form scheduler "
        "after a dash.",
        lambda: build(SGD + "schedulers: {SequentialLR: {schedulers: LinearLR}}"),
    ),
    (
        "schedulers[0].SequentialLR.schedulers[0].ConstantLR: the sequence needs its 'total_iters'. Write it, or "
        "give 'milestones'.",
        lambda: build(SGD + f"schedulers: {{SequentialLR: {{schedulers: [{CONSTANT}, {CONSTANT}]}}}}"),
    ),
    (
        "optimizer.SGD: no scheduler sets the learning rate of parameter group 0. Give the optimizer an 'lr'.",
        lambda: build(
            "optimizer: {SGD: {params: {params: bias, tags: b}}}\nschedulers: {ConstantLR: {learning_rate: 1, tags: b}}"
        ),
    ),
    (
        "schedulers[0]: this gives weight decay to parameter group 1, which has none because of 'no_decay'. Give "
        "the optimizer a 'decay_tag', and write the same tag as the scheduler's 'param_group_tags'.",
        lambda: build("optimizer: {SGD: {lr: 0.1, no_decay: true}}\nschedulers: {ConstantWD: {val: 0.1}}"),
    ),
    # The run
    (
        "config: max_duration: 100 has no unit: pass a string such as '100ba' or '100ep'.",
        lambda: build(SGD + "max_duration: 100"),
    ),
    (
        "config: max_duration is None: a clock has to know when its run is over; pass '10ep', say.",
        lambda: build(SGD + "batches_per_epoch: 10"),
    ),
    (
        "config: batches_per_epoch is 0: it has to be more than 0.",
        lambda: build(SGD + "max_duration: 9ep\nbatches_per_epoch: 0"),
    ),
    (
        "config: BatchSizeSchedule: the first threshold is 8sp: give the size at 0 first, as in {'0sp': 8, "
        "'160sp': 16}.",
        lambda: build(RUN + "samples_per_batch: {8sp: 16}"),
    ),
    (
        "config: tokens_per_sample is -1: it has to be more than 0.",
        lambda: build(RUN + "tokens_per_sample: -1"),
    ),
    (
        "config: the scale-schedule ratio (ssr) is 0: it has to be more than 0.",
        lambda: build(RUN + "ssr: 0"),
    ),
    (
        "config: 8 has no unit: pass a string such as '8ba' or '8ep'.",
        lambda: build(RUN + "stop_at: 8"),
    ),
    (
        "config: process_group='all', and torch.distributed is not initialised: call init_process_group() before "
        "the clock is made.",
        lambda: build(RUN + "process_group: all"),
    ),
    (
        "config has the unknown key 'max_steps': there are optimizer, schedulers, max_duration, "
        "batches_per_epoch, samples_per_batch, tokens_per_sample, ssr, process_group, stop_at.",
        lambda: build(SGD + "max_steps: 9"),
    ),
    # A Trainer's file, and YAML
    (
        "config has 2 trainers. Pass one of them, as in config['trainer'][0].",
        lambda: build("trainer: [{init: {}}, {init: {}}]"),
    ),
    (
        "optimizer: 'learning_rate' and 'lr' mean the same. Leave out one of them.",
        lambda: build("optimizer: {optimizer_type: SGD, learning_rate: fast, lr: 0.1}"),
    ),
    (
        "the text, line 1, column 27: found undefined alias 'bias'. Put a string that begins with * in quotes, as "
        "in '*bias'.",
        lambda: build("optimizer: {SGD: {params: *bias}}"),
    ),
    (
        "the text, line 2, column 1: while scanning for the next token, found character '\\t' that cannot start "
        "any token.",
        lambda: build("optimizer:\n\tSGD: {lr: 0.1}"),
    ),
    (
        "run_date=datetime.date(2001, 2, 3): the type date is not allowed. Write a string in quotes, a number, "
        "true, false or null.",
        lambda: build("run_date: 2001-02-03"),
    ),
    (
        "config='config': this is not YAML. Pass the path of a file as pathlib.Path(...).",
        lambda: build("config"),
    ),
    # In Python
    (
        "config=3: this is no config. Pass a mapping, the path of a YAML file or its text.",
        lambda: build(3),
    ),
    (
        "config: a clock is passed, and the config has 'max_duration'. Leave out one of them.",
        lambda: optim.build(MODEL, RUN, clock=Clock("9ba")),
    ),
    (
        "optimizer=None: this is no optimizer. Pass the optimizer or a function that returns it.",
        lambda: build({"optimizer": lambda model: None}),
    ),
    (
        "optimizer_type: there is no optimizer 'AdmW': did you mean 'AdamW' or 'Adam' or 'RAdam'? A class of your own "
        "is found once its module is imported.",
        lambda: optim.configure_optimizer("AdmW", MODEL.parameters()),
    ),
    (
        "optimizer='SGD': this is not a torch.optim.Optimizer. Pass the one to schedule.",
        lambda: optim.configure_lr_scheduler("SGD", 0.1),
    ),
    (
        "learning_rate='0.1': this is no learning rate. Pass a number, or dicts with 'scheduler'.",
        lambda: optim.configure_lr_scheduler(sgd(), "0.1"),
    ),
    (
        "adjust_learning_rate={'Linear': 0.5}: no parameter group has the factor 0.5. Make the groups by "
        "configure_param_groups(model, adjust_learning_rate=...).",
        lambda: optim.configure_lr_scheduler(sgd(), 0.1, {"Linear": 0.5}),
    ),
]
ROWS = [*OPTIMIZERS, *PRECISION, *STATE, *MUON, *GROUPS, *AVERAGES, *SCHEDULERS, *CONFIGS]


@pytest.mark.parametrize(("text", "call"), ROWS, ids=[str(i) for i in range(len(ROWS))])
def test_complete_texts(text: str, call: Callable[[], object]) -> None:
    with pytest.raises((TypeError, ValueError, KeyError, RuntimeError)) as error:
        call()
    assert error.value.args[0] == text
