"""The mistakes that people make first with `optim`: each error is complete, and says what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Row = tuple[str, Callable[[], object]]  # the complete text of an error, and the call that raises it

OPTIMIZERS: list[Row] = []
PRECISION: list[Row] = []
STATE: list[Row] = []
MUON: list[Row] = []
GROUPS: list[Row] = []
AVERAGES: list[Row] = []
SCHEDULERS: list[Row] = []
CONFIGS: list[Row] = []
ROWS = [*OPTIMIZERS, *PRECISION, *STATE, *MUON, *GROUPS, *AVERAGES, *SCHEDULERS, *CONFIGS]


@pytest.mark.parametrize(("text", "call"), ROWS, ids=[str(i) for i in range(len(ROWS))])
def test_complete_texts(text: str, call: Callable[[], object]) -> None:
    with pytest.raises((TypeError, ValueError, KeyError, RuntimeError)) as error:
        call()
    assert error.value.args[0] == text
