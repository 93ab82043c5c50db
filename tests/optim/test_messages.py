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


MATRIX = torch.nn.Parameter(torch.ones(12, 5))
WEIGHTS = {"weight": torch.ones(2)}


def group(**rule: object) -> object:
    return optim.configure_param_groups(MODEL, [{"params": "*", **rule}])


def average(clock: Clock | None = None, **options: object) -> optim.WeightAverage:
    return optim.WeightAverage([MATRIX], clock or Clock("10ba"), **options)


def step_back() -> None:
    clock = Clock("10ba")
    weights = average(clock)
    clock.tick()
    weights.step()
    clock.load_state_dict(Clock("10ba").state_dict())
    weights.step()


def step_inside() -> None:
    weights = average()
    with weights.swapped():
        weights.step()


OPTIMIZERS: list[Row] = []
PRECISION: list[Row] = []
STATE: list[Row] = []
MUON: list[Row] = [
    # Parameters that are no matrices, and matrices that do not split
    (
        "Muon, group 0: a parameter of shape (3,) and dtype torch.float32 is no real matrix. Put biases, "
        "norms and embeddings into a group with 'algorithm': 'adamw', or pass matrices='muon' to "
        "configure_param_groups.",
        lambda: optim.Muon([torch.nn.Parameter(torch.ones(3))]),
    ),
    (
        "Muon, group 0: split_sizes=(6, 3): they do not add up to the 12 rows of a parameter of shape (12, "
        "5). Pass the rows of each block.",
        lambda: optim.Muon([MATRIX], split_sizes=(6, 3)),
    ),
    (
        "Muon, group 0: split_sizes=(10, 2): with adjust_lr_fn='cerebras', blocks of different shapes would "
        "have different weight decay. Pass 'match_rms_adamw', which does not scale weight decay.",
        lambda: optim.Muon([MATRIX], split_sizes=(10, 2)),
    ),
    (
        "Muon, group 0: split_sizes=(6, 6): num_heads=2 also splits the parameter. Pass only one of the two.",
        lambda: optim.Muon([MATRIX], split_sizes=(6, 6), num_heads=2),
    ),
    (
        "Muon, group 0: num_heads=5: it does not divide the 12 rows of a parameter of shape (12, 5). Pass a "
        "number that divides the rows.",
        lambda: optim.Muon([MATRIX], num_heads=5),
    ),
    # Options
    (
        "Muon, group 0: 'betas' is no hyperparameter of the algorithm 'muon'. Leave it out, or change the "
        "group's 'algorithm'.",
        lambda: optim.Muon([{"params": [MATRIX], "betas": (0.9, 0.95)}]),
    ),
    (
        "Muon, group 0: ns_steps=6: ns_coefficients='quintic' has 5 triples. Leave ns_steps out, or pass a "
        "list with a triple for each iteration.",
        lambda: optim.Muon([MATRIX], ns_coefficients="quintic", ns_steps=6),
    ),
    (
        "Muon, group 0: adjust_lr_fn='original': it uses rows over columns, which transposed=True swaps. Pass"
        " 'match_rms_adamw'.",
        lambda: optim.Muon([MATRIX], transposed=True, adjust_lr_fn="original"),
    ),
    (
        "NorMuon, group 0: transposed=True: NorMuon has second moments for rows that are outputs. Use Muon.",
        lambda: optim.NorMuon([MATRIX], transposed=True),
    ),
    (
        "process_group=8: this is no process group of this rank. Pass a group of torch.distributed that this "
        "rank is in, or True for the default group, after init_process_group().",
        lambda: optim.Muon([MATRIX], process_group=8),
    ),
]

GROUPS: list[Row] = [
    # Rules
    (
        "rules={'params': '*bias'}: this is no list. Pass one, as [{'params': '*bias', 'tags': 'bias'}].",
        lambda: optim.configure_param_groups(MODEL, {"params": "*bias"}),
    ),
    (
        "rules[0] has 'weight_dcay', which is no hyperparameter. Write 'weight_decay'.",
        lambda: group(weight_dcay=0.1),
    ),
    (
        "rules[0] ('*.biass'): '*.biass' matches no parameter's name. The nearest names are 'bias'.",
        lambda: optim.configure_param_groups(MODEL, [{"params": "*.biass", "lr": 0.1}]),
    ),
    (
        "The parameter 'bias' gets lr=0.1 from rules[0] ('bias') and lr=0.2 from rules[1] ('*'). Set one "
        "value, or narrow the globs of one.",
        lambda: optim.configure_param_groups(MODEL, [{"params": "bias", "lr": 0.1}, {"params": "*", "lr": 0.2}]),
    ),
    (
        "rules[0] ('bias') and rules[1] ('*') are exclusive, but both match the parameter 'bias'. Narrow the "
        "globs of one, or drop its 'exclusive'.",
        lambda: optim.configure_param_groups(MODEL, [{"params": glob, "exclusive": True} for glob in ("bias", "*")]),
    ),
    # Arguments
    (
        "no_decay=True: the norm layers are not known. Pass the model, or no_decay=False.",
        lambda: optim.configure_param_groups(MODEL.named_parameters(), no_decay=True),
    ),
    (
        "model=ReLU: it has no parameters. Pass a model with parameters.",
        lambda: optim.configure_param_groups(torch.nn.ReLU()),
    ),
    (
        "frozen=False: no parameter of the model requires a gradient. Leave frozen out.",
        lambda: optim.configure_param_groups(torch.nn.Linear(2, 2).requires_grad_(False), frozen=False),
    ),
    (
        "adjust_learning_rate=[('bias', 0.1)]: this is no dict. Pass a dict from globs or layer types to factors.",
        lambda: optim.configure_param_groups(MODEL, adjust_learning_rate=[("bias", 0.1)]),
    ),
    # Matrices for Muon
    (
        "matrices='muon': the output head is not clear, since there is no embedding to compare with. It may "
        "be 'weight'. Pass output_head='*', or output_head=() for a model without an output head.",
        lambda: optim.configure_param_groups(MODEL, matrices="muon"),
    ),
    (
        "matrices='muon': the parameter 'weight_ih_l0' (and 1 more) of shape (24, 3) is owned by a GRU, whose"
        " kind is not known. Add the rule {'params': 'weight_ih_l0', 'algorithm': 'adamw'}, or 'muon' for a "
        "matrix or a stack of matrices.",
        lambda: optim.configure_param_groups(torch.nn.GRU(3, 8), matrices="muon"),
    ),
    # Tags
    (
        "clip_grad_norm_.tags='head': no parameter group has such a tag, and no group has any. Pass tags that"
        " are in optimizer.param_groups.",
        lambda: optim.clip_grad_norm_(sgd(), 1.0, tags="head"),
    ),
]

AVERAGES: list[Row] = [
    # Arguments
    (
        "WeightAverage.clock=None: this is no clock. Pass the run's timesched.Clock.",
        lambda: optim.WeightAverage([MATRIX], None),
    ),
    (
        "WeightAverage.half_life=0.0: it is not finite and above 0. Pass a share of the time so far, such as "
        "0.05, or a time with its unit, such as '200Mtok'.",
        lambda: average(half_life=0.0),
    ),
    (
        "WeightAverage.half_life='0ba': it is not above 0. Pass a longer time.",
        lambda: average(half_life="0ba"),
    ),
    (
        "WeightAverage.start='-1ba': it is before 0. Pass a time of 0 or more.",
        lambda: average(start="-1ba"),
    ),
    (
        "WeightAverage.buffers=True: this is no module. Pass one, as in buffers=model.",
        lambda: average(buffers=True),
    ),
    # Steps and states
    (
        "WeightAverage: the clock is at 0ba, and the last step was at 1ba. Load the state that was saved with"
        " the clock, or call reset_state() to start from the current weights.",
        lambda: step_back(),
    ),
    (
        "WeightAverage: a step of WeightAverage is not possible inside swapped(), where the parameters hold "
        "the average. Leave the `with` block first.",
        lambda: step_inside(),
    ),
    (
        "WeightAverage.step() computes no loss. Pass the closure to the optimizer of the model.",
        lambda: average().step(lambda: 1.0),
    ),
    (
        "WeightAverage.load_state_dict(): the state has 2 parameter groups, and this average has 1. Construct"
        " it with the saved groups, and with buffers= if buffers were saved.",
        lambda: average().load_state_dict({"param_groups": [{}, {}], "state": {}}),
    ),
    # Merging
    (
        "merge_coefficients.decay='geometric': no such decay. Pass linear, cosine, 1-sqrt, 1-square, "
        "exponential, or a function.",
        lambda: optim.merge_coefficients("geometric", ["2ba", "3ba"], "1ba"),
    ),
    (
        "merge_coefficients.times: 2ba follows 3ba. Pass increasing times after start='1ba', in its unit.",
        lambda: optim.merge_coefficients("linear", ["3ba", "2ba"], "1ba"),
    ),
    (
        "merge_weights.state_dicts is one dict. Pass several state dicts.",
        lambda: optim.merge_weights(WEIGHTS, [1.0]),
    ),
    (
        "merge_weights.coefficients=[1.0]: 2 state dicts were read. Pass a coefficient for each state dict, "
        "and at least one.",
        lambda: optim.merge_weights([WEIGHTS, WEIGHTS], [1.0]),
    ),
    (
        "merge_weights: no weights are among 'model'. Pass results of state_dict().",
        lambda: optim.merge_weights([{"model": WEIGHTS}], [1.0]),
    ),
]

INITIAL_STATE: list[Row] = [
    (
        "preinitialize.optimizer=<class 'torch.optim.sgd.SGD'>: this is no optimizer. Pass an instance.",
        lambda: optim.preinitialize(torch.optim.SGD),
    ),
    (
        "preinitialize: dampening=0.5: torch's SGD adds its first gradient undampened, which no initial "
        "buffer can do. Use optim.SGD, which computes the same, or dampening=0.",
        lambda: optim.preinitialize(torch.optim.SGD([MATRIX], lr=0.1, momentum=0.9, dampening=0.5)),
    ),
    (
        "preinitialize: the initial state of LBFGS is not known: its history grows with each step. Let it "
        "make its state in its first step.",
        lambda: optim.preinitialize(torch.optim.LBFGS([MATRIX])),
    ),
    (
        "state_bytes.target=None: no optimizer. Pass one, or (class, params, arguments).",
        lambda: optim.state_bytes(None),
    ),
]
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
        "optimizer.SGD.params='*bias': this is no list. Pass one, as [{'params': '*bias', 'tags': 'bias'}].",
        lambda: build("optimizer: {SGD: {lr: 0.1, params: '*bias'}}"),
    ),
    (
        "optimizer.SGD.params[0] ('*bais'): '*bais' matches no parameter's name. The nearest names are 'bias'.",
        lambda: build("optimizer: {SGD: {lr: 0.1, params: {params: '*bais'}}}"),
    ),
    (
        "optimizer.SGD.params[0]: 'tag' and 'tags' mean the same. Leave out one of them.",
        lambda: build("optimizer: {SGD: {lr: 0.1, params: {params: '*bias', tag: a, tags: b}}}"),
    ),
    (
        "optimizer.SGD: no_decay has 3, which is no glob. Pass globs for parameters, as '*.bias'.",
        lambda: build("optimizer: {SGD: {lr: 0.1, no_decay: 3}}"),
    ),
    (
        "optimizer.SGD: decay_tag: tags=3: pass a name, or a list or set of names.",
        lambda: build("optimizer: {SGD: {lr: 0.1, decay_tag: 3}}"),
    ),
    (
        "optimizer.SGD: matrices='adam': there is no such option. Pass 'muon' or None.",
        lambda: build("optimizer: {SGD: {lr: 0.1, matrices: adam}}"),
    ),
    (
        "optimizer.SGD: frozen='no': this is of type str. Pass True or False.",
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
ROWS = [*OPTIMIZERS, *PRECISION, *STATE, *MUON, *GROUPS, *AVERAGES, *INITIAL_STATE, *SCHEDULERS, *CONFIGS]


@pytest.mark.parametrize(("text", "call"), ROWS, ids=[str(i) for i in range(len(ROWS))])
def test_complete_texts(text: str, call: Callable[[], object]) -> None:
    with pytest.raises((TypeError, ValueError, KeyError, RuntimeError)) as error:
        call()
    assert error.value.args[0] == text
