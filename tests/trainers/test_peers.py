"""The table of docs/preinitialize.md, as far as its packages are here: lion-pytorch and transformers."""

from tests.docs.tables import rows
from tools import preinitialized


def test_the_rows_of_the_page():
    ((*table,),) = rows("preinitialize.md", ["package", "class", "`preinitialize`"])
    here = [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in preinitialized.rows()]
    assert [row[:2] for row in here] == [
        ["lion_pytorch", "Lion"],
        ["transformers", "Adafactor"],
        ["transformers", "Adafactor, lr=0.01"],
    ]
    assert all(row in table for row in here)
