import pytest

from tests.optim.compiling import fresh


@pytest.fixture
def compiles_afresh():
    """Nothing is compiled before the test, and nothing is left behind."""
    with fresh():
        yield
