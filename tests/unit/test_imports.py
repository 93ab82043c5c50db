"""tools/imports.py: which imports are a circle, which go up, and which are named as on purpose."""

import pytest

from tools import imports

CIRCLE = "modules import each other: "
CASES = [
    ({"p/a": "import p.b", "p/b": "import p.a"}, f"{CIRCLE}p.a <- p.b <- p.a|{CIRCLE}p.b <- p.a <- p.b"),
    ({"p/a": "from . import b", "p/b": "from .a import x"}, CIRCLE),
    ({"p/a": "try:\n    from p import b\nexcept ImportError:\n    pass", "p/b": "class C:\n    import p.a"}, CIRCLE),
    ({"p/__init__": "from p.a import x", "p/a": "from p import x"}, f"{CIRCLE}p <- p.a|{CIRCLE}p.a <- p"),
    ({"p/__init__": "from p.a import x", "p/a": "from p import b", "p/b": "import os"}, "3 modules, no circle"),
    ({"p/a": "from p import b", "p/b": "def f():\n    from p import a"}, CIRCLE),
    ({"p/a": "def f():\n    from p import b", "p/b": "def f():\n    from p import a"}, CIRCLE),
    ({"p/a": "from p import b", "p/b": "if TYPE_CHECKING:\n    from p.a import x"}, CIRCLE),
    ({"p/a": "from p import b", "p/b": "if TYPE_CHECKING:\n    import os\nelse:\n    from p.a import x"}, CIRCLE),
    ({"p/a": "from p import b", "p/b": "def f():\n    import p.c", "p/c": ""}, "3 modules, no circle"),
    ({"optim/base/a": "", "optim/state/b": "from ..base.a import x"}, "no circle, and no import that goes up"),
    ({"optim/base/a": "from ..state import b", "optim/state/b": ""}, "optim.base.a -> optim.state.b goes up"),
    ({"optim/base/a": "def f():\n    import optim.state.b", "optim/state/b": ""}, "optim.base.a -> optim.state.b goes"),
    ({"optim/groups/a": "from ..muon.b import x", "optim/muon/b": ""}, "optim.muon is not a layer below optim.groups"),
    ({"optim/scheduler": "from .closed_form import a", "optim/closed_form/a": ""}, "2 modules, no circle"),
    ({"optim/scheduler": "from .base import a", "optim/base/a": ""}, "optim.base is not a layer below optim.sched"),
    ({"timesched/a": "import optim.base.b", "optim/base/b": ""}, "timesched.a -> optim.base.b goes up"),
    ({"timesched/__main__": "import optim.base.b", "optim/base/b": ""}, "2 modules, no circle"),
    ({"optim/config/names": "def f():\n    import optim", "optim/__init__": "import optim.config.names"}, "no circle"),
    ({"optim/config/names": "import optim", "optim/__init__": ""}, "optim.config.names -> optim goes up"),
    ({"optim/config/names": "", "optim/__init__": ""}, "ON_PURPOSE names optim.config.names -> optim, which is not"),
]


@pytest.mark.parametrize(("files", "shown"), CASES)
def test_imports(tmp_path, capsys, files, shown):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    assert imports.main(["p", "optim", "timesched"], tmp_path) == ("no circle" not in shown)
    printed = capsys.readouterr().out
    assert any(each in printed for each in shown.split("|"))
