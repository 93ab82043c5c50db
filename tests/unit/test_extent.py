"""What runs in part: the lists name tests that exist, and no function but those left to CI is without a row."""

from collections import Counter
from pathlib import Path

import pytest

from tests.extent import ONE_IN_FOUR, ONLY_IN_ALL, choose_part

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("beginning", [*ONE_IN_FOUR, *ONLY_IN_ALL])
def test_the_lists_name_tests(beginning):
    file, _, function = beginning.partition("::")
    assert not function or f"def {function}(" in (ROOT / file).read_text(encoding="utf-8")
    assert (ROOT / file).is_file()


def test_a_quarter_of_the_rows_and_the_first_of_each_function():
    listed, other = ONE_IN_FOUR[0], "tests/unit/test_clock.py"
    rows = [f"{file}::{function}[{i}]" for file in (listed, other) for function in ("a", "b") for i in range(400)]
    single = [f"{listed}::c", f"{other}::c", f"{ONLY_IN_ALL[0]}[1]"]
    chosen = choose_part([*rows, *single])
    counts = Counter(test_id.partition("[")[0] for test_id in chosen)
    assert counts[f"{other}::a"] == counts[f"{other}::b"] == 400
    assert 70 < counts[f"{listed}::a"] < 130 and 70 < counts[f"{listed}::b"] < 130
    assert {f"{listed}::a[0]", f"{listed}::b[0]", f"{listed}::c", f"{other}::c"} <= chosen
    assert ONLY_IN_ALL[0] not in counts
    assert choose_part(rows) == chosen - set(single)  # the others change nothing
