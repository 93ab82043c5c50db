"""tools/imports.py: what is a circle of imports, and what is not."""

import pytest

from tools import imports

CASES = [
    ({"a": "import p.b", "b": "import p.a"}, 1, "p.a <- p.b <- p.a|p.b <- p.a <- p.b"),
    ({"a": "from . import b", "b": "from .a import x"}, 1, "import each other"),
    ({"a": "try:\n    from p import b\nexcept ImportError:\n    pass", "b": "class C:\n    from p.a import x"}, 1, ""),
    ({"__init__": "from p.a import x", "a": "from p import x"}, 1, "p <- p.a|p.a <- p"),
    ({"__init__": "from p.a import x", "a": "from p import b", "b": "import os, torch"}, 0, "3 modules, no circle"),
    ({"a": "from p import b", "b": "def f():\n    from p import a"}, 0, "p.b -> p.a"),
    ({"a": "from p import b", "b": "if TYPE_CHECKING:\n    from p.a import x"}, 0, "p.b -> p.a"),
    ({"a": "from p import b", "b": "if TYPE_CHECKING:\n    import os\nelse:\n    from p.a import x"}, 1, "import each"),
    ({"a": "from p import b", "b": "def f():\n    import p.c", "c": ""}, 0, "4 modules, no circle"),
]


@pytest.mark.parametrize(("files", "status", "shown"), CASES)
def test_circles(tmp_path, capsys, files, status, shown):
    (tmp_path / "p").mkdir()
    for name, text in {"__init__": "", **files}.items():
        (tmp_path / "p" / f"{name}.py").write_text(text, encoding="utf-8")
    assert imports.main(["p"], tmp_path) == status
    printed = capsys.readouterr().out
    assert any(each in printed for each in shown.split("|"))
    assert ("->" in printed) is ("->" in shown)
