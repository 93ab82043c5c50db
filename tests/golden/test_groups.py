"""The parameter groups of models are the same as before, in their order, with their values, tables and errors."""

import json

import pytest

from tests.golden.groups import FOLDER, MODELS, make


@pytest.mark.parametrize("name", MODELS)
def test_the_groups_of_a_model(name):
    expected = json.loads((FOLDER / f"{name}.json").read_text())
    cases = make(name)
    assert cases.keys() == expected.keys()
    for case, described in cases.items():
        assert described == expected[case], case
    assert sum("groups" in described for described in cases.values()) > 6
