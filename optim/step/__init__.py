"""How the step of any optimizer runs. A step goes through these modules from the top down:

    rule_optimizer.py       `RuleOptimizer.step` computes the loss of a closure, and starts the step
      stepper.py            runs the step as an earlier step has prepared it, or plans it
        gather.py           plan: the tensors and hyperparameters of the step become works
        routes.py           plan: works are split into parts, and each part gets a route
        prepared.py         keeps a plan for later steps
        execution.py        steps each part on its route
          fused.py          route 1: by one of torch's fused kernels
          known_counts.py   route 2: on numbers, with the counts that the host knows
          pieces.py         splits a part into pieces, which the update or the kernel processes one by one

work.py has the record `Work`, which all of them pass on. The update itself is in `optim/algorithms` and `optim/muon`.

The four kinds of a step, and the modules that it uses after `RuleOptimizer.step`:

    in a graph of the user       gather ──► execution: `step_on_tensors`
    after `compile()`            stepper ──► gather ──► step_shared ──► the compiled `step_on_tensors`
    planned                      stepper ──► gather ──► step_shared ──► routes ──► execution: `step_on_route`
    prepared                     stepper ──► prepared ──► execution: `step_on_route`

(In `step_shared`, Muon steps the matrices that ranks share.) Most steps are prepared.

A plan depends only on the kind of the step. The kind is:

* of each parameter, state and gradient: its class, dtype, device, shape and strides; which parameters have a gradient;
* of each group: its keys, the types of its hyperparameters, and which of them are 0 or False.

prepared.py runs a plan again as long as the kind is the same. So nothing that makes a plan may ask for another value:
`choose_routes`, `Kernel.supports`, and the rule's `scalar_states` (its names), `tensor_states` and `advances_count`. If
one of them did, steps would run as planned for the previous value, without an error.
tests/optim/test_prepared_steps.py compares prepared with planned steps.
"""
