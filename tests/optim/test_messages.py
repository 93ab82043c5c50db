"""The mistakes that people make first with `optim`: each error is complete, and says what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import Parameter

import optim
from optim.lr_scheduler import ConstantLR, LinearLR, MultiStepLR, OneCycleLR, PiecewiseConstantLR, SequentialLR
from optim.weight_decay_scheduler import ConstantWD
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


class Decayed(torch.optim.SGD):
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            torch._foreach_mul_(group["params"], 0.9)


def parameter(dtype: torch.dtype = torch.float32) -> Parameter:
    return Parameter(torch.ones(2, dtype=dtype))


def load(optimizer: optim.Optimizer, saved: optim.Optimizer | None = None, **values: object) -> None:
    """Load a state dict, with these values in its first group."""
    state = (saved or optimizer).state_dict()
    state["param_groups"][0] |= values
    optimizer.load_state_dict(state)


def load_groups_alone(optimizer: optim.Optimizer) -> None:
    optimizer.load_state_dict({"param_groups": optimizer.state_dict()["param_groups"]})


def step(optimizer: optim.Optimizer, grad: torch.Tensor, **values: object) -> None:
    """Take a step with these values in the first group."""
    optimizer.param_groups[0].update(values)
    optimizer.param_groups[0]["params"][0].grad = grad
    optimizer.step()


def resize(optimizer: optim.Optimizer) -> None:
    optimizer.param_groups[0]["params"][0].data = torch.ones(3)
    optimizer.step()


def combine(scheduler_class: type, *schedulers: Callable[[optim.Optimizer], object], **arguments: object) -> object:
    """A SequentialLR or ChainedLR of schedulers on one optimizer."""
    optimizer = sgd()
    return scheduler_class(optimizer, [make(optimizer) for make in schedulers], **arguments)


def step_superseded() -> None:
    optimizer = sgd()
    first = ConstantLR(optimizer, 0.1)
    _second = ConstantLR(optimizer, 0.2)
    first.step()


OPTIMIZERS: list[Row] = [
    (
        "AdamW.lr=-1: it must be a finite number at least 0. Pass 0.001, for example.",
        lambda: optim.AdamW([parameter()], lr=-1),
    ),
    (
        "SGD.momentum=-0.5: it must be a finite number at least 0. Pass 0.001, for example.",
        lambda: optim.SGD(None, lr=0.1, momentum=-0.5),  # as torch, which also reads the numbers first
    ),
    (
        "AdamW.lr='1e-3': it must be a finite number at least 0. Pass 0.001, for example.",
        lambda: optim.AdamW([parameter()], lr="1e-3"),
    ),
    (
        "Adam.lr=tensor([0.1000, 0.2000]): a tensor must hold a single floating-point number. Pass "
        "torch.tensor(0.001, dtype=torch.float64).",
        lambda: optim.Adam([parameter()], lr=torch.tensor([0.1, 0.2])),
    ),
    (
        "Adam.betas=0.9: it must be a tuple or list. Pass a tuple of 2 numbers.",
        lambda: optim.Adam([parameter()], betas=0.9),
    ),
    (
        "Adam.betas=(0.9, 0.95, 0.99): it has 3 elements. Pass a tuple of 2 numbers.",
        lambda: optim.Adam([parameter()], betas=(0.9, 0.95, 0.99)),
    ),
    (
        "Adam.betas=(0.9, 1.0): betas[1]=1.0: it must be a finite number at least 0 and below 1. Pass 0.001, for "
        "example.",
        lambda: optim.Adam([parameter()], betas=(0.9, 1.0)),
    ),
    (
        "Adam.amsgrad='yes': it must be False or True.",
        lambda: optim.Adam([parameter()], amsgrad="yes"),
    ),
    (
        "Rprop.step_sizes=(1.0, 0.5): the first number must not be above the second. Swap them.",
        lambda: optim.Rprop([parameter()], step_sizes=(1.0, 0.5)),
    ),
    (
        "SGD, group 0: nesterov=True: momentum=0 must be above 0, and dampening=0 must be 0. Pass momentum=0.9 "
        "and dampening=0, for example.",
        lambda: optim.SGD([parameter()], lr=0.1, nesterov=True),
    ),
    (
        "Adafactor, group 0: lr=None: it needs relative_step=True. Pass a number such as lr=0.001.",
        lambda: optim.Adafactor([parameter()], lr=None),
    ),
    (
        "Adafactor, group 0: lr=0.1: relative_step=True computes the learning rate. Pass lr=None.",
        lambda: optim.Adafactor([parameter()], lr=0.1, relative_step=True),
    ),
    (
        "Adafactor, group 0: warmup_init=True: it needs relative_step=True. Pass both, with lr=None.",
        lambda: optim.Adafactor([parameter()], lr=None, warmup_init=True),
    ),
    (
        "Adam.params=3: it must be a list or iterator. Pass the parameters, or dicts with the key 'params'.",
        lambda: optim.Adam(3),
    ),
    (
        "Adam, group 0: tags=3: it must be a name, or a list or set of names. Pass tags=['a name'].",
        lambda: optim.Adam([{"params": [parameter()], "tags": 3}]),
    ),
    (
        "Adam, group 0: a parameter has dtype torch.int64. Pass only floating-point and complex parameters.",
        lambda: optim.Adam([torch.ones(2, dtype=torch.int64)]),
    ),
    (
        "param_group=None: it must be a dict. Pass a dict with the key 'params'.",
        lambda: optim.Adam([parameter()]).add_param_group(None),
    ),
    (
        "param_group={'lr': 0.1}: it has no 'params'. Put its parameters under this key.",
        lambda: optim.Adam([parameter()]).add_param_group({"lr": 0.1}),
    ),
    (
        "Adam, group 0: algorithm='muon': Adam has one algorithm for all groups. Give such groups to optim.Muon, "
        "or make them without `matrices`.",
        lambda: optim.Adam([{"params": [parameter()], "algorithm": "muon"}]),
    ),
    (
        "Lion: this parameter has no state 'step'. Construct with enable_global_step=True.",
        lambda: optim.Lion([parameter()]).increment_global_step(parameter()),
    ),
    (
        "SGD: a gradient of shape (2,) has the layout torch.sparse_coo, but it must be dense. Use sparse=False "
        "in the layer, or torch.optim.SparseAdam.",
        lambda: step(optim.SGD([parameter()], lr=0.1), torch.ones(2).to_sparse()),
    ),
    (
        "SGD: with maximize=False, momentum=0.9, dampening=0, nesterov=False, a step needs the state "
        "'momentum_buffer', which was not created at construction. Construct with these values, or with a tensor "
        "in place of a 0 that changes later.",
        lambda: step(optim.SGD([parameter()], lr=0.1), torch.ones(2), momentum=0.9),
    ),
]
PRECISION: list[Row] = [
    (
        "AdamW.master_weights=1: it must be False or True.",
        lambda: optim.AdamW([parameter()], master_weights=1),
    ),
    (
        "AdamW.stochastic_rounding='no': it must be False or True.",
        lambda: optim.AdamW([parameter()], stochastic_rounding="no"),
    ),
    (
        "AdamW.rounding_seed=2147483648: it must be a whole number at least -2.14748e+09 and at most "
        "2.14748e+09. Pass 5, for example.",
        lambda: optim.AdamW([parameter()], rounding_seed=2**31),
    ),
    (
        "AdamW.state_dtype='float16': a state must be torch.float32 or torch.bfloat16. Pass one of these, a dict "
        "from names of states to them, or None.",
        lambda: optim.AdamW([parameter()], state_dtype="float16"),
    ),
    (
        "AdamW.state_dtype=torch.bfloat16: in bfloat16, 'exp_avg_sq' would stop changing, since a step adds too "
        "little to it. Leave it in float32, or pass stochastic_rounding=True.",
        lambda: optim.AdamW([parameter()], state_dtype=torch.bfloat16),
    ),
    (
        "AdamW.state_dtype={'momentum': torch.bfloat16}: 'momentum' is not a state with the shape of its "
        "parameter. Use the names exp_avg, exp_avg_sq.",
        lambda: optim.AdamW([parameter()], state_dtype={"momentum": torch.bfloat16}),
    ),
    (
        "RMSprop.state_dtype=torch.bfloat16: with centered=True, 'square_avg' in bfloat16 could make the number "
        "under a root negative. Leave it in float32.",
        lambda: optim.RMSprop([parameter()], state_dtype=torch.bfloat16, stochastic_rounding=True, centered=True),
    ),
    (
        "AdamW: a parameter has dtype torch.float16, but master_weights, stochastic_rounding and state_dtype are "
        "for bfloat16 and float32. Convert the model, or leave these options out for its group.",
        lambda: optim.AdamW([parameter(torch.float16)], master_weights=True),
    ),
    (
        "AdamW: torch.float32 of shape (3,) on cpu is not a value for torch.float32 of shape (2,) on cpu. Pass a "
        "dict from parameters to tensors, as float32_parameters() returns it.",
        lambda: optim.AdamW([parameter()]).load_float32_parameters({parameter(): torch.ones(3)}),
    ),
]
STATE: list[Row] = [
    (
        "Adam: the state dict has no 'state'. Pass the result of an optimizer's state_dict().",
        lambda: load_groups_alone(optim.Adam([parameter()])),
    ),
    (
        "Adam: the state dict has 2 parameter groups, but this optimizer has 1. Build the optimizer with the "
        "saved groups.",
        lambda: load(optim.Adam([parameter()]), optim.Adam([{"params": parameter()}, {"params": parameter()}])),
    ),
    (
        "Adam, group 0 of the state dict: it has 2 parameters in 'params', but this optimizer's group has 1. "
        "Build the optimizer with the saved parameters in their order.",
        lambda: load(optim.Adam([parameter()]), optim.Adam([parameter(), parameter()])),
    ),
    (
        "Adam, group 0 of the state dict: it lacks 'amsgrad', 'betas'. Load it into the class that saved it, not Adam.",
        lambda: load(optim.Adam([parameter()]), optim.RMSprop([parameter()])),
    ),
    (
        "Adam, group 0 of the state dict: it has 'centered'. Load it into the class that saved it, not Adam.",
        lambda: load(optim.Adam([parameter()]), centered=False),
    ),
    (
        "Adam, group 0 of the state dict: amsgrad=True: this Adam was built with amsgrad=False, which decides "
        "about its state or formula. Build it with amsgrad=True.",
        lambda: load(optim.Adam([parameter()]), amsgrad=True),
    ),
    (
        "Adam, group 0 of the state dict: lr=-1: it must be a finite number at least 0. Pass 0.001, for example.",
        lambda: load(optim.Adam([parameter()]), lr=-1),
    ),
    (
        "SGD: state of parameter 0, of shape (2,): this optimizer does not have 'momentum_buffer' (momentum=0.9 "
        "in the dict, momentum=0 here). Load it into an optimizer that is built like the saved one.",
        lambda: load(optim.SGD([parameter()], lr=0.1), optim.SGD([parameter()], lr=0.1, momentum=0.9)),
    ),
    (
        "Adam: state of parameter 0, of shape (2,): exp_avg: it is torch.float32 of shape (3,) on cpu, but this "
        "optimizer has torch.float32 of shape (2,) on cpu. Build the optimizer like the saved one. To load state "
        "that is distributed differently, use torch.distributed.checkpoint.state_dict.set_optimizer_state_dict.",
        lambda: load(optim.Adam([parameter()]), optim.Adam([Parameter(torch.ones(3))])),
    ),
    (
        "Adam: a tensor of shape (2,) is in none of the groups. Pass parameters of the groups, or add it with "
        "add_param_group().",
        lambda: optim.Adam([parameter()]).reset_state(torch.ones(2)),
    ),
    (
        "Adam: parameter 0 of group 0 is torch.float32 of shape (3,) on cpu, and its state 'exp_avg' is "
        "torch.float32 of shape (2,) on cpu instead of torch.float32 of shape (3,) on cpu. To reset the state of "
        "this parameter, call optimizer.reset_state([parameter]).",
        lambda: resize(optim.Adam([parameter()])),
    ),
]
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
        "matrices='muon': the parameter 'weight_ih_l0' (and 1 more) of shape (24, 3) belongs to a GRU, whose"
        " kind is not known. Pass the rule {'params': 'weight_ih_l0', 'algorithm': 'adamw'} in the list after the "
        "model, or 'muon' for a matrix or a stack of matrices.",
        lambda: optim.configure_param_groups(torch.nn.GRU(3, 8), matrices="muon"),
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
        "WeightAverage.half_life=0.999: as a share, it would average over most of the run. For a decay of 0.999 in "
        "each batch, pass '693ba'. For a share of the time so far, pass less than 0.9, such as 0.05.",
        lambda: average(half_life=0.999),
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
        "preinitialize: dampening=0.5: the first gradient enters the buffer undampened, which no initial "
        "buffer can do. Pass dampening=0, or use optim.SGD in place of torch's SGD.",
        lambda: optim.preinitialize(torch.optim.SGD([MATRIX], lr=0.1, momentum=0.9, dampening=0.5)),
    ),
    (
        "preinitialize: the initial state of LBFGS is not known: its history grows with each step. Let it "
        "make its state in its first step.",
        lambda: optim.preinitialize(torch.optim.LBFGS([MATRIX])),
    ),
    (
        "preinitialize: the initial state of Decayed is not known: its class has a step or an _init_group of its own. "
        "Write a subclass of optim.Optimizer with a preinitialize(), or load a checkpoint with "
        "torch.distributed.checkpoint.state_dict, which makes the state itself.",
        lambda: optim.preinitialize(Decayed([MATRIX])),
    ),
    (
        "state_bytes.target=None: no optimizer. Pass one, or (class, params, arguments).",
        lambda: optim.state_bytes(None),
    ),
]
SCHEDULERS: list[Row] = [
    # Arguments
    (
        "ConstantLR.learning_rate=None: a NoneType is not a number. Pass an int or a float.",
        lambda: ConstantLR(sgd(), None),
    ),
    (
        "ConstantLR.learning_rate='1e-3': a str is not a number. Pass an int or a float.",
        lambda: ConstantLR(sgd(), "1e-3"),
    ),
    (
        "ConstantLR has no argument 'lr': there are optimizer, learning_rate, total_iters, param_group_tags, "
        "clock, on_change.",
        lambda: ConstantLR(sgd(), lr=0.1),
    ),
    (
        "LinearLR.total_iters=-1: the value is not a count of steps. Pass a whole number of at least 0, or a time.",
        lambda: LinearLR(sgd(), 0.1, 0.0, -1),
    ),
    (
        "LinearLR.total_iters: '10 epochs' is not a time: did you mean '10ep'?",
        lambda: LinearLR(sgd(), 0.1, 0.0, "10 epochs"),
    ),
    (
        "LinearLR.clock=None: 10ep needs a clock. Pass clock=timesched.Clock(...), or a number of steps.",
        lambda: LinearLR(sgd(), 0.1, 0.0, "10ep"),
    ),
    (
        "LinearLR.clock='10ba': it is not a clock. Pass a timesched.Clock, or a state with timestamp.",
        lambda: LinearLR(sgd(), 0.1, 0.0, 10, clock="10ba"),
    ),
    (
        "OneCycleLR.pct_start=30.0: it is too large. Pass at most 1, or 0.5 with three phases.",
        lambda: OneCycleLR(sgd(), 0.1, 1.0, 10, pct_start=30),
    ),
    (
        "milestones=['20ba', '10ba']: on this run 20ba comes after 10ba, which is listed after it. Put the "
        "milestones in order.",
        lambda: MultiStepLR(sgd(), 0.1, 0.5, [20, 10]),
    ),
    (
        "MultiStepLR.milestones=10: the value is not a list. Pass a list of step counts, as in [10, 20].",
        lambda: MultiStepLR(sgd(), 0.1, 0.5, 10),
    ),
    (
        "PiecewiseConstantLR: 2 milestones separate 3 values, and there are 2: [0.1, 0.2]. Pass one value "
        "more than milestones.",
        lambda: PiecewiseConstantLR(sgd(), [0.1, 0.2], [10, 20]),
    ),
    (
        "ConstantLR.optimizer='sgd': it is not a torch.optim.Optimizer. Pass an optimizer.",
        lambda: ConstantLR("sgd", 0.1),
    ),
    (
        "tags='head': no parameter group has such a tag, and no group has any. Pass tags of the groups, or "
        "None for all groups.",
        lambda: ConstantLR(sgd(), 0.1, param_group_tags="head"),
    ),
    (
        "tags='head': no parameter group has such a tag, and the tags are 'body'. Pass tags of the groups, or "
        "None for all groups.",
        lambda: ConstantLR(sgd({"tags": "body"}), 0.1, param_group_tags="head"),
    ),
    (
        "key='weight_decay': parameter group 0 has no such key. Pass one of its keys: capturable, "
        "differentiable, etas, foreach, lr, maximize, step_sizes.",
        lambda: ConstantWD(torch.optim.Rprop([MATRIX]), 0.1),
    ),
    # Schedulers of schedulers
    (
        "SequentialLR.milestones=[5, 8]: the number of milestones does not fit 2 schedulers. Pass 1: one for "
        "each scheduler except the first.",
        lambda: combine(SequentialLR, *[lambda optimizer: ConstantLR(optimizer, 0.1)] * 2, milestones=[5, 8]),
    ),
    (
        "milestones=['8ba', '5ba']: on this run 8ba comes after 5ba, which is listed after it. Put the "
        "milestones in order.",
        lambda: combine(SequentialLR, *[lambda optimizer: ConstantLR(optimizer, 0.1)] * 3, milestones=[8, 5]),
    ),
    (
        "SequentialLR.schedulers[0]: its optimizer differs. Make all schedulers with the same optimizer.",
        lambda: combine(SequentialLR, lambda optimizer: ConstantLR(sgd(), 0.1), milestones=[]),
    ),
    (
        "SequentialLR.schedulers[0]: it schedules 'weight_decay'. Pass schedulers of 'lr'.",
        lambda: combine(SequentialLR, lambda optimizer: ConstantWD(optimizer, 0.1), milestones=[]),
    ),
    (
        "SequentialLR.schedulers[0]: it is a torch.optim.lr_scheduler.ConstantLR. Pass a scheduler of optim, "
        "such as optim.lr_scheduler.ConstantLR.",
        lambda: combine(SequentialLR, lambda optimizer: torch.optim.lr_scheduler.ConstantLR(optimizer), milestones=[]),
    ),
    (
        "SequentialLR.schedulers=[]: it is not a list of schedulers. Pass one or more in a list.",
        lambda: SequentialLR(sgd(), [], []),
    ),
    # Steps and states
    (
        "ConstantLR.key='lr': ConstantLR(learning_rate=0.1) no longer controls it, since "
        "ConstantLR(learning_rate=0.2) was created later. Step the later scheduler, give them different tags, "
        "or combine them: bind a list, or make a SequentialLR or ChainedLR.",
        lambda: step_superseded(),
    ),
    (
        "ConstantLR.schedule: the state is of a different schedule.\n    saved "
        "ConstantLR(learning_rate=0.2)\n    now   ConstantLR(learning_rate=0.1)\n    value at step 0: [0.2] "
        "saved, [0.1] now\nMake the saved schedule again, or pass on_change='new' to continue with the "
        "present schedule. See docs/troubleshooting.md.",
        lambda: ConstantLR(sgd(), 0.1).load_state_dict(ConstantLR(sgd(), 0.2).state_dict()),
    ),
    (
        "ConstantLR.key='lr': the state is of key='weight_decay'. Load the state of a scheduler with the same key.",
        lambda: ConstantLR(sgd(), 0.1).load_state_dict(ConstantWD(sgd(), 0.1).state_dict()),
    ),
]
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
        "optimizer.SGD: SGD.lr='fast': it must be a finite number at least 0. Pass 0.001, for example.",
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
        "optimizer.SGD: decay_tag: tags=3: it must be a name, or a list or set of names. Pass tags=['a name'].",
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
        "schedulers[0].CosineAnealingLR: there is no scheduler 'CosineAnealingLR': did you mean 'CosineAnnealingLR' or "
        "'CosineAnnealingWD' or 'CosineAnnealingScheduler'? A class of your own is found once its module is imported.",
        lambda: build(SGD + "schedulers: {CosineAnealingLR: {}}"),
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
        "schedulers[0].LinearScheduler: key='lrr': parameter group 0 has no such key. Pass one of its keys: dampening, "
        "lr, maximize, momentum, nesterov, param_names, weight_decay.",
        lambda: build(RUN + "schedulers: {LinearScheduler: {key: lrr}}"),
    ),
    (
        "schedulers[0].LinearScheduler: BoundLR.on_change='keep': the option does not exist. Pass 'same' or 'new'.",
        lambda: build(RUN + "schedulers: {LinearScheduler: {on_change: keep}}"),
    ),
    (
        "schedulers[0].ConstantLR: tags='head': no parameter group has such a tag, and no group has any. Pass tags of "
        "the groups, or None for all groups.",
        lambda: build(SGD + "schedulers: {ConstantLR: {learning_rate: 0.1, param_group_tags: head}}"),
    ),
    (
        "schedulers[0].SequentialLR.schedulers='LinearLR': this is no list. Write each absolute-value scheduler "
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
        "config: max_duration: 100 has no unit. Pass a string with one of iter, ep, ba, sp, tok, dur, sec, such as "
        "'100ep'.",
        lambda: build(SGD + "max_duration: 100"),
    ),
    (
        "config: Clock.max_duration=None: a clock must know when its run ends. Pass a time, such as '10ep'.",
        lambda: build(SGD + "batches_per_epoch: 10"),
    ),
    (
        "config: batches_per_epoch=0: it is not above 0. Pass a positive number.",
        lambda: build(SGD + "max_duration: 9ep\nbatches_per_epoch: 0"),
    ),
    (
        "config: BatchSizeSchedule.sizes: the first threshold is 8sp, not 0. Begin with the size at 0, as in "
        "{'0sp': 8, '160sp': 16}.",
        lambda: build(RUN + "samples_per_batch: {8sp: 16}"),
    ),
    (
        "config: tokens_per_sample=-1: it is not above 0. Pass a positive number.",
        lambda: build(RUN + "tokens_per_sample: -1"),
    ),
    (
        "config: ssr=0: it is not above 0. Pass a positive number.",
        lambda: build(RUN + "ssr: 0"),
    ),
    (
        "config: 8 has no unit. Pass a string with one of iter, ep, ba, sp, tok, dur, sec, such as '8ep'.",
        lambda: build(RUN + "stop_at: 8"),
    ),
    (
        "config: Clock.process_group='all': torch.distributed is not initialized. Call init_process_group() before "
        "you create the clock.",
        lambda: build(RUN + "process_group: all"),
    ),
    (
        "config has the unknown key 'max_steps': did you mean 'max_duration'? There are optimizer, schedulers, "
        "max_duration, batches_per_epoch, samples_per_batch, tokens_per_sample, ssr, process_group, stop_at.",
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
