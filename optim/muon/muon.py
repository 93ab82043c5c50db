"""Muon and NorMuon for matrices, together with AdamW or Lion for the other parameters, in one optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from timesched.findings import warn_once
from timesched.types import ParamGroup, StateDict

from ..algorithms.adam import AdamW
from ..algorithms.lion import Lion
from ..base.hyperparameters import FRACTION, HYPERPARAMETERS, NON_NEGATIVE, SWITCH, Choice, Counts, Number
from ..base.sharding import Placement, row_zeros
from ..base.tensor_lists import Columns, Tensors, indices_by_shape, lerp_, select
from ..precision.options import RULES
from ..state.optimizer import State
from ..step.rule_optimizer import OptimizerOptions, RuleOptimizer, Unpack
from ..step.work import Factors, Work
from .exchange import read_process_group
from .matrices import block_rows, has_full_matrices, learning_rate_scale, matrix_shape, update_full, update_gathered
from .newton_schulz import JORDAN, TOGETHER, Coefficients, iteration_count
from .ranks import step_shared_matrices

DTYPES = ("bfloat16", "float32", "float64")
ALGORITHMS: Mapping[str, Any] = {"adamw": AdamW, "lion": Lion}  # for the groups that Muon does not step

LARGE_UPDATES = (
    "with adjust_lr_fn='cerebras', updates are about as large as AdamW's at the same learning rate. Pass a learning "
    "rate that suits AdamW, such as 3e-4, or another adjust_lr_fn, such as 'original'."
)


class Muon(RuleOptimizer):
    """Muon: momentum made orthogonal by Newton-Schulz iterations, for the matrices of hidden layers.

    A group with `"algorithm": "adamw"` or `"lion"` is updated by `AdamW` or `Lion`, with the arguments, states and
    defaults of that class. All other groups:

        B = μ*B + (1 - μ)*g
        G = B                                       if not nesterov
        G = g + μ*B                                 if nesterov and adjust_lr_fn == "cerebras"
        G = (1 - μ)*g + μ*B                         if nesterov and adjust_lr_fn != "cerebras"
        O = NewtonSchulz(G)
        s = 0.2*sqrt(max(n, m))                     if adjust_lr_fn in ("cerebras", "match_rms_adamw")
        s = sqrt(max(1, n/m))                       if adjust_lr_fn in ("original", None)
        s = sqrt(n/m)                               if adjust_lr_fn == "spectral_unclamped"
        r = η*s                                     if adjust_lr_fn == "cerebras"
        r = η                                       if adjust_lr_fn != "cerebras"
        θ = θ - r*λ*θ                               if not cautious_weight_decay
        θ = θ - r*λ*θ*(O*θ >= 0)                    if cautious_weight_decay
        θ = θ - η*s*O

    where θ is a parameter, g its gradient, n and m are the rows and columns of the matrix. η is `lr`, μ is `momentum`,
    λ is `weight_decay`. NewtonSchulz(G) approximates the orthogonal matrix nearest to G. It divides X = G by its norm,
    or by `eps` if `eps` is larger. It then repeats X = a*X + (b*A + c*A@A) @ X with A = X @ X.T, for each triple
    (a, b, c) of `ns_coefficients`.

    A parameter of 3 dimensions is a stack of matrices, such as the experts of a mixture. A parameter of 4 or 5
    dimensions is the weight of a convolution, and is read as a matrix of `shape[0]` rows. With "cerebras", n and m in
    its s are its first two sizes.

    State of a parameter of shape S:
        momentum_buffer: S, B = 0

    Args:
        params: parameters of 2 or more dimensions, or groups of them.
        lr: learning rate, at least 0. Default: 0.02; torch's default: 0.001.
        weight_decay: decoupled weight decay, at least 0. Default: 0.01; torch's default: 0.1.
        momentum: the share of the buffer that is kept, in [0, 1).
        nesterov: True for Nesterov momentum: look ahead.
        ns_steps: the number of iterations with one triple, 1 to 99; None: 5, or as many as there are triples. Default:
            None; torch's default: 5.
        ns_coefficients: the triple of all iterations, a list with a triple for each, or the name of a published list:
            "quintic" (5), "polar_express" (5; the norm is first multiplied by 1.02), "deepseek" (8 and 2).
        eps: the smallest divisor for the norm, at least 0. With 0 there is no limit, and a step does not depend on
            the scale of the gradients. With a larger `eps`, small gradients give small steps. Default: 0.0; torch's
            default: 1e-7.
        adjust_lr_fn: the variant of Muon, and its learning-rate scaling. "cerebras" is the variant of that suite. It
            multiplies `lr` by 0.2 times the root of the larger side, also for weight decay, and the look-ahead is the
            gradient plus `momentum` times the buffer. The other values are torch's variant: weight decay uses `lr`
            itself, and the look-ahead weighs the gradient by 1 - `momentum`. "match_rms_adamw" scales the learning rate
            like "cerebras". "original" or None scales it by the root of rows over columns, if this is above 1;
            "spectral_unclamped" always does (torch 2.14.1). Default: "cerebras"; torch's default: None.
        flatten: True: a parameter is one matrix of `shape[0]` rows, as the weight of a Conv1d needs. False: it is a
            stack of matrices, in its last two dimensions. None: it is a stack if it has 3 dimensions.
        split_sizes: the rows of each block of a fused projection, such as (q, k, v). Each block is a matrix of its own,
            scaled by its own shape. The sizes add up to the rows.
        num_heads: the number of blocks of equal size, one for each head.
        transposed: True if parameters have the shape (inputs, outputs), as transformers' Conv1D has. Then only an
            `adjust_lr_fn` is allowed whose scaling is the same for both shapes.
        ns_dtype: the dtype of the iterations: torch.bfloat16, torch.float32 or torch.float64, or its name. None:
            bfloat16 on accelerators, and float32 on the CPU, where products in bfloat16 are slow.
        cautious_weight_decay: True: an element decays only where the step does not move it away from 0
            (https://arxiv.org/abs/2510.12402).
        adamw: a dict of arguments of `AdamW`: the defaults of groups with the algorithm "adamw", where they differ from
            the defaults of `AdamW`. `lr` and the arguments above are for matrices only. `**options` are for all
            groups.
        lion: the same for the algorithm "lion" and `Lion`.
        process_group: a group of torch.distributed whose ranks hold the same parameters and gradients, as under DDP, or
            True for the default group. Each matrix is made orthogonal on one rank, which sends the step to the others.
            (Matrices of DTensors are shared without it.) Copies and pickles of the optimizer lose the process group.
        enable_global_step: keep the state `step`.
        **options: `master_weights`, `stochastic_rounding`, `rounding_seed` and `state_dtype`: how bfloat16
            parameters are updated. See `Precision`.

    Raises:
        ValueError, TypeError: a hyperparameter breaks its rule, or belongs to a different algorithm than its group.
            Or a parameter of a matrix group has fewer than 2 dimensions, or rows that do not split into the blocks.
            Or this rank is not in `process_group`.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.eye(2))
    >>> optimizer = Muon([weight], lr=0.5, weight_decay=0.0)
    >>> weight.grad = torch.eye(2)
    >>> optimizer.step()
    >>> round(weight[0, 0].item(), 1)
    0.8
    >>> rest = {"params": [torch.nn.Parameter(torch.ones(2))], "algorithm": "adamw"}
    >>> hybrid = Muon([{"params": [weight]}, rest], lr=0.02, adamw={"lr": 3e-4})
    >>> [group["lr"] for group in hybrid.param_groups]
    [0.02, 0.0003]

    Source: https://kellerjordan.github.io/posts/muon/.
    """

    hyper = dict(
        algorithm=Choice(("muon", *ALGORITHMS)),
        lr=NON_NEGATIVE,
        weight_decay=NON_NEGATIVE,
        momentum=FRACTION,
        nesterov=SWITCH,
        ns_steps=Number(least=1, most=99, integer=True, optional=True),
        ns_coefficients=Coefficients(),
        eps=Number(least=0, scheduled=False),
        adjust_lr_fn=Choice(("cerebras", None, "original", "match_rms_adamw", "spectral_unclamped")),
        flatten=Choice((None, True, False)),
        split_sizes=Counts(),
        num_heads=Number(least=1, integer=True, optional=True),
        transposed=SWITCH,
        ns_dtype=Choice((None, *DTYPES, *(getattr(torch, name) for name in DTYPES))),
        cautious_weight_decay=SWITCH,
    )
    may_be_missing = frozenset(
        ("algorithm", "flatten", "split_sizes", "num_heads", "transposed", "ns_dtype", "cautious_weight_decay")
    )
    elementwise = False
    reads = ()
    process_group: Any = None
    states: ClassVar[tuple[str, ...]] = ("momentum_buffer",)
    counts_steps = False
    decouples_weight_decay = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.02,
        weight_decay: float | Tensor = 0.01,
        momentum: float | Tensor = 0.95,
        nesterov: bool = True,
        ns_steps: int | None = None,
        *,
        ns_coefficients: object = JORDAN,
        eps: float = 0.0,
        adjust_lr_fn: str | None = "cerebras",
        flatten: bool | None = None,
        split_sizes: Sequence[int] | None = None,
        num_heads: int | None = None,
        transposed: bool = False,
        ns_dtype: torch.dtype | str | None = None,
        cautious_weight_decay: bool = False,
        adamw: Mapping[str, object] | None = None,
        lion: Mapping[str, object] | None = None,
        process_group: object = None,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        self._construct(locals())

    def _construct(self, arguments: dict[str, Any]) -> None:
        """The common part of the constructors of Muon and NorMuon. `arguments`: their `locals()`.

        `adamw` and `lion` become the other algorithms. `RuleOptimizer` reads the options and the hyperparameters, which
        are the defaults of matrix groups.
        """
        self._others = self._make_others(arguments)
        self.process_group = read_process_group(arguments["process_group"])
        RuleOptimizer.__init__(self, arguments["params"], {**arguments, "algorithm": "muon"})
        for group in self.param_groups:
            if large_updates := find_large_updates(group, group["lr"]):
                text = f"{type(self).__name__}.lr={float(group['lr']):g}: {large_updates}"
                warn_once(Muon, "large updates", text, 3)

    def _make_others(self, arguments: dict[str, Any]) -> dict[str, RuleOptimizer]:
        """AdamW and Lion without parameters, by name. They have the arguments of `adamw` and `lion` as defaults."""
        precision = {name: value for name, value in arguments["options"].items() if name in RULES}
        others: dict[str, RuleOptimizer] = {}
        for name, algorithm in ALGORITHMS.items():
            options = {} if arguments[name] is None else arguments[name]
            if not isinstance(options, Mapping):
                raise TypeError(
                    f"{type(self).__name__}.{name}={options!r}: it is not a mapping. Pass the arguments of {name}, as "
                    f"in {{'lr': 3e-4}}."
                )
            others[name] = algorithm([{"params": []}], **{**precision, **options})
        return others

    # The optimizer has three algorithms, and a group's key "algorithm" chooses one. `_others` has an AdamW and a Lion
    # without parameters. A group has the rules, defaults, states and equation of `algorithm_of(group)`, for which the
    # base classes ask. So `adamw=` and `lion=` reach a group when it is added, as the defaults of its algorithm. The
    # precision options are the same for all groups.

    def algorithms(self) -> list[Any]:
        return [self, *self._others.values()]

    def algorithm_of(self, group: ParamGroup) -> Any:
        return self._others.get(group.get("algorithm", "muon"), self)

    def add_param_group(self, param_group: ParamGroup) -> None:
        if isinstance(param_group, dict):  # the base class raises an error for anything else
            foreign = HYPERPARAMETERS.difference(self.algorithm_of(param_group).hyper, ("algorithm",))
            for key in param_group:
                if key in foreign:
                    raise ValueError(
                        f"{type(self).__name__}, group {len(self.param_groups)}: {key!r} is no hyperparameter of the "
                        f"algorithm {param_group.get('algorithm', 'muon')!r}. Leave it out, or change the group's "
                        "'algorithm'."
                    )
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if self.algorithm_of(group) is self and group["ns_steps"] is None:  # torch's Muon needs the number in a load
            group["ns_steps"] = iteration_count(group["ns_coefficients"], 5)

    def check_combination(self, group: ParamGroup, where: str) -> None:
        super().check_combination(group, where)
        triples, steps = group["ns_coefficients"], group["ns_steps"]
        count = iteration_count(triples, steps)
        if steps is not None and steps != count:
            raise ValueError(
                f"{where}ns_steps={steps!r}: ns_coefficients={triples!r} has {count} triples. Leave ns_steps out, or "
                "pass a list with a triple for each iteration."
            )
        if group.get("split_sizes") is not None and group.get("num_heads") is not None:
            raise ValueError(
                f"{where}split_sizes={group['split_sizes']!r}: num_heads={group['num_heads']!r} also splits the "
                "parameter. Pass only one of the two."
            )
        if group.get("transposed") and group["adjust_lr_fn"] not in ("cerebras", "match_rms_adamw"):
            raise ValueError(
                f"{where}adjust_lr_fn={group['adjust_lr_fn']!r}: it uses rows over columns, which transposed=True "
                "swaps. Pass 'match_rms_adamw'."
            )

    def check_parameter(self, p: Tensor, group: ParamGroup, where: str) -> None:
        super().check_parameter(p, group, where)
        if p.dim() < 2 or p.is_complex():
            raise ValueError(
                f"{where}a parameter of shape {tuple(p.shape)} and dtype {p.dtype} is no real matrix. Put biases, "
                "norms and embeddings into a group with 'algorithm': 'adamw', or pass matrices='muon' to "
                "configure_param_groups."
            )
        rows = matrix_shape(p.shape, group).rows
        sizes = block_rows(rows, group)
        if sum(sizes) != rows:
            key = "num_heads" if group.get("num_heads") else "split_sizes"
            raise ValueError(
                f"{where}{key}={group[key]!r}: the blocks do not add up to the {rows} rows of a parameter of shape "
                f"{tuple(p.shape)}. Pass a number of heads that divides the rows, or the rows of each block."
            )
        if group["adjust_lr_fn"] == "cerebras" and len({learning_rate_scale(p.shape, group, n) for n in sizes}) > 1:
            raise ValueError(
                f"{where}split_sizes={group['split_sizes']!r}: with adjust_lr_fn='cerebras', blocks of different "
                "shapes would have different weight decay. Pass 'match_rms_adamw', which does not scale weight decay."
            )

    @staticmethod
    def factors(h: Factors, s: Factors) -> Factors:
        return {"one_minus_momentum": 1 - h["momentum"]}

    @staticmethod
    def update(
        h: Factors, f: Factors, p: Tensors, g: Tensors, placement: Placement | None = None, **states: Tensors
    ) -> None:
        lerp_(states["momentum_buffer"], g, f["one_minus_momentum"])
        columns = {"p": p, "g": g, **states}
        # Each list is updated in a call of its own, which frees the memory of its directions at its end.
        for indices in indices_by_shape(p, alone=placement is not None, on_cpu=TOGETHER):
            chosen: Columns = {name: select(xs, indices) for name, xs in columns.items()}
            if placement is None or has_full_matrices(placement, indices[0], h):
                update_full(h, f, chosen)
            else:  # then the list is one parameter
                update_gathered(h, f, chosen, placement, indices[0])

    def step_shared(self, works: list[Work]) -> list[Work]:
        if self.process_group is None and all(work.placement is None for work in works):
            return works
        return step_shared_matrices(works, self.process_group)

    def __getstate__(self) -> StateDict:
        return {**super().__getstate__(), "_others": self._others}


class NorMuon(Muon):
    """NorMuon: Muon whose steps are divided by the root of a second moment, one for each row.

        B = μ*B + (1 - μ)*g
        G = B                                       if not nesterov
        G = g + μ*B                                 if nesterov and adjust_lr_fn == "cerebras"
        G = (1 - μ)*g + μ*B                         if nesterov and adjust_lr_fn != "cerebras"
        O = NewtonSchulz(G)
        v = β2*v + (1 - β2)*mean(O*O, -1, True)
        U = O / (sqrt(v) + 1e-8)
        U = U * norm(O) / norm(U)
        s = 0.2*sqrt(max(n, m))                     if adjust_lr_fn in ("cerebras", "match_rms_adamw")
        s = sqrt(max(1, n/m))                       if adjust_lr_fn in ("original", None)
        s = sqrt(n/m)                               if adjust_lr_fn == "spectral_unclamped"
        r = η*s                                     if adjust_lr_fn == "cerebras"
        r = η                                       if adjust_lr_fn != "cerebras"
        θ = θ - r*λ*θ                               if not cautious_weight_decay
        θ = θ - r*λ*θ*(U*θ >= 0)                    if cautious_weight_decay
        θ = θ - η*s*U

    where θ is a parameter, g its gradient, n and m are the rows and columns of the matrix. η is `lr`, μ is `momentum`,
    β2 is `beta2`, and λ is `weight_decay`. The mean is over the columns, for each row. `Muon` defines NewtonSchulz.

    State of a parameter of shape S:
        momentum_buffer: S, B = 0
        variance_neuron: (S[0], 1), v = 0

    (A stack of matrices has one number for each row of each matrix.) Arguments and errors are the same as in `Muon`. In
    addition, `beta2` is the share of the second moment that is kept, in [0, 1). `transposed` must be False, since the
    rows must be outputs.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.zeros(2, 1))
    >>> optimizer = NorMuon([weight], lr=0.5, adjust_lr_fn="original")
    >>> weight.grad = torch.tensor([[3.0], [4.0]])
    >>> optimizer.step()
    >>> weight[0].item() == weight[1].item()  # with Muon, the steps are as 3 to 4
    True

    Source: https://arxiv.org/abs/2510.05491, with the mean over the columns always, as in microsoft/dion.
    """

    hyper = dict(Muon.hyper, beta2=FRACTION)
    states = ("momentum_buffer", "variance_neuron")
    row_states = ("variance_neuron",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.02,
        weight_decay: float | Tensor = 0.01,
        momentum: float | Tensor = 0.95,
        beta2: float | Tensor = 0.95,
        nesterov: bool = True,
        ns_steps: int | None = None,
        *,
        ns_coefficients: object = JORDAN,
        eps: float = 0.0,
        adjust_lr_fn: str | None = "cerebras",
        flatten: bool | None = None,
        split_sizes: Sequence[int] | None = None,
        num_heads: int | None = None,
        transposed: bool = False,
        ns_dtype: torch.dtype | str | None = None,
        cautious_weight_decay: bool = False,
        adamw: Mapping[str, object] | None = None,
        lion: Mapping[str, object] | None = None,
        process_group: object = None,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        self._construct(locals())

    def check_combination(self, group: ParamGroup, where: str) -> None:
        super().check_combination(group, where)
        if group.get("transposed"):
            raise ValueError(f"{where}transposed=True: NorMuon has second moments for rows that are outputs. Use Muon.")

    def initial_state(self, p: Tensor, group: ParamGroup) -> State:
        dtype = torch.float32 if p.dtype.itemsize < 4 else p.dtype
        rows = row_zeros(p, len(matrix_shape(p.shape, group).stack) + 1, dtype)
        return {"momentum_buffer": torch.zeros_like(p), "variance_neuron": rows}

    @staticmethod
    def factors(h: Factors, s: Factors) -> Factors:
        return {"one_minus_momentum": 1 - h["momentum"], "one_minus_beta2": 1 - h["beta2"]}


def find_large_updates(group: ParamGroup, lr: float | Tensor) -> str | None:
    """The text of a warning, if a group has large matrices and a learning rate that suits another `adjust_lr_fn`."""
    if group.get("adjust_lr_fn") != "cerebras" or (isinstance(lr, Tensor) and lr.is_meta):
        return None
    longer_sides = [max(matrix_shape(p.shape, group)[1:]) for p in group["params"]]
    return LARGE_UPDATES if lr > 0.01 and max(longer_sides, default=0) >= 256 else None
