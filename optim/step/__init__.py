"""How the step of any optimizer runs. A step goes through these modules in this order:

1. rule_optimizer.py: `RuleOptimizer.step` computes the loss of a closure. In a graph, 3 and 6 follow at once.
2. stepper.py: the step runs as an earlier step has prepared it (prepared.py, then 5), or is planned (3 to 6).
3. gather.py: the tensors and hyperparameters of the step become works (work.py).
4. `step_shared`: Muon steps the matrices that ranks share. Then the compiled step does all other work, if there is one.
5. execution.py: each work gets a route, and is stepped by a fused kernel (fused.py) or by the update on numbers
   (known_counts.py), in blocks (blocks.py).
6. execution.py: in graphs and on other devices, the update runs on tensors.

The update itself is in `optim/algorithms`, and common_steps.py has what several updates share.
"""
