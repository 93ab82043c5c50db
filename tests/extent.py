"""How much of the tests runs: a part for `make test`, all for CI, and more for `make test-deep`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from zlib import crc32

# With new examples each time, and rows that take too long for CI.
IS_DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
# `make test` sets this. Everything else runs all rows: pytest itself, `make test-all`, CI, `make test` with arguments.
IS_PART = os.environ.get("TEST_ROWS") == "part"

# One row in four of these runs in part: tests with many rows of a kind, which take seconds together.
ONE_IN_FOUR = (
    "tests/laws/test_equal_formulas.py",
    "tests/optim/schedulers/test_graphs.py",
    "tests/optim/schedulers/test_values.py",
    "tests/optim/test_checkpoints.py",
    "tests/optim/test_compile.py",
    "tests/optim/test_compile_schedules.py",
    "tests/optim/test_compile_use.py",
    "tests/optim/test_equations.py",
    "tests/optim/test_initial_state.py",
    "tests/optim/test_low_precision.py",
    "tests/optim/test_low_precision_use.py",
    "tests/optim/test_memory.py",
    "tests/optim/test_muon.py",
    "tests/optim/test_muon_scale.py",
    "tests/optim/test_parity.py",
    "tests/optim/test_precision.py",
    "tests/optim/test_prepared_steps.py",
    "tests/optim/test_state_follows.py",
    "tests/parity/test_on_a_clock.py",
    "tests/parity/test_schedules.py",
    "tests/unit/test_batch_size_sampler.py",
    "tests/unit/test_branches.py",
    "tests/unit/test_curves.py",
    "tests/unit/test_drawing.py",
)
# Not in part: tests that take seconds each, in an installer, a C++ compiler or new interpreters.
ONLY_IN_ALL = (
    "tests/cli/test_command_line.py::test_a_module_that_hides_the_package_optim",
    "tests/cli/test_command_line.py::test_the_installed_program_finds_a_model_in_its_folder",
    "tests/cli/test_command_line.py::test_the_program_and_its_codes",
    "tests/docs/test_results.py::test_a_script_that_was_stopped_goes_on",
    "tests/integration/test_llmfoundry.py::test_a_module_that_hides_optim_is_named_where_an_optimizer_is_asked_for",
    "tests/optim/schedulers/test_graphs.py::test_as_machine_code",
    "tests/optim/schedulers/test_graphs.py::test_numbers_that_a_graph_writes",
    "tests/optim/test_compile.py::test_what_stands_beside_a_step_in_the_same_graph",
    "tests/optim/test_compile.py::test_with_inductor",
    "tests/optim/test_low_precision_use.py::test_with_inductor",
    "tests/optim/test_muon_scale.py::test_in_a_compiled_step",
    "tests/packaging/test_env.py",
    "tests/packaging/test_wheel.py",
    "tests/parity/test_on_a_clock.py::test_composer_is_imported_for_its_own_classes_only",
)


def choose_part(ids: Iterable[str]) -> set[str]:
    """The ids of the tests that run in part. A function keeps its first row, so that each function runs."""
    chosen: set[str] = set()
    begun: set[str] = set()
    for test_id in ids:
        function = test_id.partition("[")[0]
        is_first = function not in begun
        begun.add(function)
        if test_id.startswith(ONLY_IN_ALL):
            continue
        if is_first or not test_id.startswith(ONE_IN_FOUR) or crc32(test_id.encode()) % 4 == 0:
            chosen.add(test_id)
    return chosen
