"""The objects that exist before the first step: the base class of all optimizers, and the state of their parameters.

Each file has one job. The first column says when it works:

    optimizer.py     construction, a new group     checks the groups, and makes initial states by `preinitialize` (a
                                                   user's class) or `new_state` (ours: `NewStateOptimizer`)
    step_wrapper.py  around each `step`            no gradients, torch's hooks; afterwards, no new state may exist
    keeper.py        before each step, save, load  lets the states follow parameters that were moved, cast or replaced
    checkpoint.py    a load                        reads a state dict completely, then writes it into the states
    tensor_kinds.py  for keeper and checkpoint     whether a tensor can take the place, or the values, of another one

The states are in `optimizer.state`, as in torch. `StateKeeper.keep` puts the tensors there. Steps and loads write into
them.
"""
