"""The equations of docstrings become formulas on the site."""

import inspect
import re
from xml.etree import ElementTree

import pytest

import optim
import timesched
from tests.docs.tables import extension
from tests.optim.signatures import NAMES

equations = extension("equations")
BLOCK = re.compile(r"(?:Formula:|\n)\n((?:    [^\n]+\n)+)")


def read_aloud(mathml):
    """MathML as a line of text, in which the children of elements of two dimensions are listed."""

    def said(element):
        inside = [said(child) for child in element]
        match element.tag:
            case "mi" | "mn" | "mo" | "mtext":
                return element.text.replace("\N{FUNCTION APPLICATION}", "").replace("\N{NO-BREAK SPACE}", " ")
            case "mspace":
                return " "
            case "math" | "mrow" | "mtd":
                return "".join(inside)
            case "mtr":
                return ": ".join(inside)
        return f"{element.tag}[{', '.join(inside)}]"

    return said(ElementTree.fromstring(mathml)) if mathml else ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("a - (b - c)", "a−(b−c)"), ("a - b*c", "a−b c"), ("-(a + b)", "−(a+b)"), ("(a + b)**2", "msup[(a+b), 2]")),
        *(("a * g*g", "a msup[g, 2]"), ("a * b / c", "mfrac[a b, c]"), ("2 * lr * 3", "2⋅lr⋅3")),
        *(("a / b * c / d", "mfrac[a, b] mfrac[c, d]"), ("β1**t", "msubsup[β, 1, t]"), ("f * (t >= a)", "f [t≥a]")),
        *(("gamma ** (t / (a + b))", "msup[γ, t/(a+b)]"), ("x ** 0.5 - sqrt(y)", "msqrt[x]−msqrt[y]")),
        ("1e-6 * m_hat", "msup[10, −6] mover[m, ^]"),
        ("sum(T_0 * x ** k for k in range(n + 1))", "munderover[∑, k=0, n]msub[T, 0] msup[x, k]"),
        ("prod(s(t) for s in rates)", "munder[∏, s∈rates]s(t)"),
        ("g = -g      if maximize and not x", ("g", "=−g", "if maximize and not x")),
        ('s = 1 - r if decay == "a" else s', ("s", "=1−r", 'if decay="a"')),
        ("x = 1 if a else 2", ("x", "={mtable[1: if a, 2: otherwise]", "")),
        ("x = 1 if a else 2 if b else 3", ("x", "={mtable[1: if a, 2: if b, 3: otherwise]", "")),
        ("x = ( 1 if a else 2 if b else None )", ("x", "={mtable[1: if a, 2: if b]", "")),
        ('w(p) = p for "a", 1 for "b"', ("w(p)", '={mtable[p: for "a", 1: for "b"]', "")),
        ('w = p for "a"', ("w", "=p", 'for "a"')),
        ('s = {"a": 1}.get(decay, s)', ("s", '={mtable[1: if decay="a"]', "")),
    ],
)
def test_expressions_and_equations(text, expected):
    is_equation = isinstance(expected, tuple)
    found = tuple(map(read_aloud, equations.equation(text))) if is_equation else read_aloud(equations.inline(text))
    assert found == expected


@pytest.mark.parametrize(
    ("lines", "sign"),
    [(["g = -g      if maximize", "m = g"], "←"), (["f = t / T", "g = f * t0"], "="), (["q = 1      if q_max"], "=")],
)
def test_assignments_have_arrows(lines, sign):
    table = equations.table(lines)
    assert {"=", "←"} & set(re.findall(r"<mo>(.)</mo>", table)) == {sign}


@pytest.mark.parametrize("text", ["a // b", "a[1:2]", "next(x for x in y)", "float | None", "three words", "{**a}[b]"])
def test_what_is_no_formula(text):
    with pytest.raises(equations.NoNotation):
        equations.inline(text)


def test_all_equations_of_docstrings():
    classes = [getattr(optim, name) for name in NAMES]
    classes += [getattr(optim.lr_scheduler, name) for name in optim.lr_scheduler.__all__]
    classes += [getattr(timesched, name) for name in timesched.__all__ if name.endswith("Scheduler")]
    lines = set()
    for cls in classes:
        for block in BLOCK.findall((inspect.getdoc(cls) or "").partition("\nState of")[0]):
            lines.update(equations.statements(block.splitlines()))
    assert len(lines) > 100

    def shown_as_code(line):
        try:
            equations.equation(line)
        except equations.NoNotation:
            return True
        return False

    assert list(filter(shown_as_code, lines)) == []
