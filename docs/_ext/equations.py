"""The plain-text equations of docstrings as MathML, which browsers draw without a script.

An equation is `symbol = expression`, in Python's syntax, with a condition after two or more blanks. If an equation of a
block uses the previous value of its symbol, all equations of the block are assignments, shown with arrows: `x ← x + 1`.
An expression without a usual notation, such as an assignment to a slice, raises `NoNotation`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from html import escape
from itertools import pairwise

# How firmly the parts of an expression hold together: a part that holds less firmly than its place asks for is put in
# brackets.
LOOSE, OR, AND, NOT, COMPARISON, SUM, PRODUCT, SIGN, ATOM = range(9)

GREEK = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "delta": "δ",
    "eps": "ε",
    "eta": "η",
    "theta": "θ",
    "mu": "μ",
    "pi": "π",
    "sigma": "σ",
}
# Functions by their usual names; any other name of several letters is an argument, and set as code.
FUNCTIONS = {"cos", "max", "min", "sign", "mean", "outer", "len", "RMS", "NewtonSchulz"}
FENCES = {"abs": "||", "norm": "‖‖", "floor": "⌊⌋", "ceil": "⌈⌉"}
LARGE = {"sum": "∑", "prod": "∏"}
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "=",
    ast.NotEq: "≠",
    ast.Lt: "<",
    ast.LtE: "≤",
    ast.Gt: ">",
    ast.GtE: "≥",
    ast.In: "∈",
    ast.NotIn: "∉",
    ast.Is: "=",
    ast.IsNot: "≠",
}
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
NAME = re.compile(rf"([^\W\d_]|{'|'.join(GREEK)})(?:_?(\d+)|_(\w+))?")


class NoNotation(ValueError):
    """An expression that is no formula."""


def op(text: str, **attributes: str) -> str:
    inside = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f"<mo{inside}>{escape(text)}</mo>"


def row(*items: str) -> str:
    return f"<mrow>{''.join(items)}</mrow>"


def words(text: str) -> str:
    return f"<mtext>{text.replace(' ', NO_BREAK_SPACE)}</mtext>"  # browsers drop plain blanks at the ends


def code(text: str) -> str:
    return f'<mi class="code">{escape(text)}</mi>'


def fenced(fences: str, *items: str, stretchy: str = "true") -> str:
    first, last = (op(sign, form=form, stretchy=stretchy) for sign, form in zip(fences, ("prefix", "postfix")))
    return row(first, *items, last)


def commas(items: list[ast.expr]) -> str:
    return op(",").join(part(item) for item in items)


def part(node: ast.expr, least: int = LOOSE) -> str:
    """An expression in a place that asks for a firmness; a comparison that is a number stands in square brackets."""
    text, firmness = expression(node)
    if firmness >= least:
        return text
    return fenced("[]" if isinstance(node, ast.Compare) else "()", text)


def expression(node: ast.expr) -> tuple[str, int]:
    """The MathML of an expression, and how firmly it holds together."""
    match node:
        case ast.Name(name):
            return symbol(name), ATOM
        case ast.Constant(value):
            return constant(value)
        case ast.UnaryOp(ast.USub(), operand):
            return row(op("−", form="prefix"), part(operand, SIGN)), SIGN
        case ast.UnaryOp(ast.Not(), operand):
            return row(words("not "), part(operand, NOT)), NOT
        case ast.BoolOp(operator, values):
            word, firmness = (" and ", AND) if isinstance(operator, ast.And) else (" or ", OR)
            return row(words(word).join(part(value, firmness + 1) for value in values)), firmness
        case ast.Compare(left, operators, rights):
            items = [part(left, SUM)]
            for comparison, right in zip(operators, rights, strict=True):
                choices = fenced("{}", commas(right.elts)) if isinstance(right, ast.Tuple) else part(right, SUM)
                items += [op(COMPARISONS[type(comparison)]), choices]
            return row(*items), COMPARISON
        case ast.BinOp(left, ast.Add(), right):
            return row(part(left, SUM), op("+"), part(right, SUM)), SUM
        case ast.BinOp(left, ast.Sub(), right):
            return row(part(left, SUM), op("−"), part(right, PRODUCT)), SUM
        case ast.BinOp(_, ast.Mult() | ast.Div(), _):
            return product(node), PRODUCT
        case ast.BinOp(left, ast.FloorDiv(), right):  # of Slashes
            return row(part(left, PRODUCT), op("/"), part(right, ATOM)), PRODUCT
        case ast.BinOp(base, ast.Pow(), exponent):
            return power(base, exponent), ATOM
        case ast.IfExp():
            rows: list[tuple[ast.expr, str | None]] = []
            while isinstance(node, ast.IfExp):
                rows.append((node.body, part(node.test)))
                node = node.orelse
            is_none = isinstance(node, ast.Constant) and node.value is None  # there are no other cases
            return cases(rows if is_none else [*rows, (node, None)]), ATOM
        case ast.Subscript(ast.Dict() as table, key):
            return choice(table, key), ATOM
        case ast.Call(ast.Attribute(ast.Dict() as table, "get"), [key, *default]):
            return choice(table, key, *default), ATOM
        case ast.Subscript(value, ast.Slice(lower, None, None)) if lower:
            return f"<msub>{part(value, ATOM)}{row(part(lower), op(':'))}</msub>", ATOM
        case ast.Subscript(value, index) if not isinstance(index, ast.Slice):
            return f"<msub>{part(value, ATOM)}{part(index)}</msub>", ATOM
        case ast.Call(function, arguments, keywords):
            return call(function, arguments, keywords), ATOM
        case ast.Tuple(items) | ast.List(items):
            return fenced("()", commas(items)), ATOM
        case ast.Starred(value):
            return part(value), ATOM
    raise NoNotation(ast.unparse(node))


def symbol(name: str, above: str = "") -> str:
    """A letter, perhaps with an index and an exponent; or the name of an argument, as code."""
    found = NAME.fullmatch(name)
    if not found:
        base, index = (f"<mi>{name}</mi>" if name in FUNCTIONS else code(name)), ""
    else:
        letter, digits, index = found[1], found[2], found[3] or ""
        base = f"<mi>{GREEK.get(letter, letter)}</mi>"
        if index == "hat":
            base, index = f'<mover accent="true">{base}{op("^", stretchy="false")}</mover>', ""
        elif digits:
            index = f"<mn>{digits}</mn>"
        elif index:
            index = f"<mi>{'∞' if index == 'inf' else GREEK.get(index, index.replace('_', ' '))}</mi>"
    if index and above:
        return f"<msubsup>{base}{index}{above}</msubsup>"
    if index or above:
        kind = "msub" if index else "msup"
        return f"<{kind}>{base}{index or above}</{kind}>"
    return base


def constant(value: object) -> tuple[str, int]:
    if isinstance(value, bool) or value is None:
        return code(str(value)), ATOM
    if isinstance(value, str):
        return code(f'"{value}"'), ATOM
    mantissa, _, exponent = repr(value).partition("e")
    if not exponent:
        return f"<mn>{mantissa}</mn>", ATOM
    ten = f"<msup><mn>10</mn>{part(ast.parse(str(int(exponent)), mode='eval').body)}</msup>"
    return (ten, ATOM) if mantissa == "1" else (row(f"<mn>{mantissa}</mn>", op("⋅"), ten), PRODUCT)


class Slashes(ast.NodeTransformer):
    """Writes quotients of an exponent as `a / b`, since fractions would be too small to read."""

    def visit_Div(self, node: ast.Div) -> ast.operator:
        return ast.FloorDiv()


def power(base: ast.expr, exponent: ast.expr) -> str:
    if isinstance(exponent, ast.Constant) and exponent.value == 0.5:
        return f"<msqrt>{part(base)}</msqrt>"
    above = part(Slashes().visit(exponent))
    return symbol(base.id, above) if isinstance(base, ast.Name) else f"<msup>{part(base, ATOM)}{above}</msup>"


def product(node: ast.expr) -> str:
    """Products and quotients, from left to right: all factors since the last quotient are the next numerator."""
    chain: list[tuple[bool, ast.expr]] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        chain.insert(0, (isinstance(node.op, ast.Div), node.right))
        node = node.left
    done: list[str] = []
    numerator = [node]
    for divides, factor in chain:
        if not divides:
            numerator.append(factor)
            continue
        done.append(f"<mfrac>{factors(numerator)}{part(factor)}</mfrac>")
        numerator = []
    return joined([*done, *([factors(numerator)] if numerator else [])])


def factors(items: list[ast.expr]) -> str:
    if len(items) == 1:
        return part(items[0])
    texts: list[str] = []
    while items:
        first = items[0]
        count = 1
        while isinstance(first, ast.Name) and count < len(items) and ast.dump(items[count]) == ast.dump(first):
            count += 1
        texts.append(power(first, ast.Constant(count)) if count > 1 else part(first, PRODUCT))
        items = items[count:]
    return joined(texts)


def joined(items: list[str]) -> str:
    """Letters stand side by side; a dot keeps code and numbers apart."""
    text = items[0]
    for before, after in pairwise(items):
        dot = 'class="code"' in before + after or re.match(r"(<(?!mfrac)\w+>)*<mn>", after)
        text += (op("⋅") if dot else '<mspace width="0.17em"/>') + after
    return row(text)


def call(function: ast.expr, arguments: list[ast.expr], keywords: list[ast.keyword]) -> str:
    name = function.id if isinstance(function, ast.Name) else ""
    if name == "sqrt":
        return f"<msqrt>{part(arguments[0])}</msqrt>"
    if name in FENCES:
        return fenced(FENCES[name], part(arguments[0]), stretchy="false" if name in ("abs", "norm") else "true")
    if name == "where":
        return cases([(arguments[1], part(arguments[0])), (arguments[2], None)])
    if len(arguments) == 1 and isinstance(arguments[0], ast.GeneratorExp):
        return over(name, arguments[0])
    texts = [part(argument) for argument in arguments]
    texts += [row(code(keyword.arg or ""), op("="), part(keyword.value)) for keyword in keywords]
    return row(part(function, ATOM), op("\N{FUNCTION APPLICATION}"), fenced("()", op(",").join(texts)))


def over(name: str, terms: ast.GeneratorExp) -> str:
    """A sum or a product of terms, or the largest number of some kind."""
    (loop,) = terms.generators
    last = None
    if isinstance(loop.iter, ast.Call) and ast.unparse(loop.iter.func) == "range":
        (stop,) = loop.iter.args
        plus_one = isinstance(stop, ast.BinOp) and ast.unparse(stop).endswith(" + 1")
        last = stop.left if isinstance(stop, ast.BinOp) and plus_one else ast.BinOp(stop, ast.Sub(), ast.Constant(1))
    bound = row(part(loop.target), op("∈"), part(loop.iter)) if last is None else ""
    if name in LARGE:
        sign = op(LARGE[name], largeop="true", movablelimits="false")
        start = row(part(loop.target), op("="), "<mn>0</mn>")
        limits = f"<munderover>{sign}{start}{part(last)}</munderover>" if last else f"<munder>{sign}{bound}</munder>"
        return row(limits, part(terms.elt, PRODUCT))
    if name not in ("max", "min") or ast.unparse(terms.elt) != ast.unparse(loop.target):
        raise NoNotation(f"{name}({ast.unparse(terms)})")
    bound = row(part(loop.target), op("≤"), part(last)) if last else bound
    conditions = [words(" with ") + part(test) for test in loop.ifs]
    return row(f"<mi>{name}</mi>", op("\N{FUNCTION APPLICATION}"), fenced("{}", bound, *conditions))


def choice(table: ast.Dict, key: ast.expr, *default: ast.expr) -> str:
    rows: list[tuple[ast.expr, str | None]] = []
    for name, value in zip(table.keys, table.values, strict=True):
        if name is None:
            raise NoNotation(ast.unparse(table))
        rows.append((value, row(part(key), op("="), part(name))))
    return cases([*rows, *((value, None) for value in default)])


def cases(rows: Sequence[tuple[ast.expr, str | None]], word: str = "if ") -> str:
    """Values by conditions; None is for all others."""
    lines = ""
    for value, condition in rows:
        when = words("otherwise") if condition is None else words(word) + condition
        lines += f"<mtr><mtd>{part(value)}</mtd><mtd>{when}</mtd></mtr>"
    return row(op("{", form="prefix", stretchy="true"), f'<mtable class="cases">{lines}</mtable>')


def parsed(text: str) -> ast.expr:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise NoNotation(text) from None
    if any(isinstance(node, ast.FloorDiv) for node in ast.walk(tree)):
        raise NoNotation(text)
    return tree


def math(content: str, text: str) -> str:
    return f'<math alttext="{escape(text)}">{content}</math>'


def inline(text: str) -> str:
    """An expression, or an equation, as MathML. Raises `NoNotation`."""
    return math(op("=").join(part(parsed(side)) for side in text.split(" = ")), text)


LINE = re.compile(r"(.+?) = (.+?)(?:  +if (.+))?")
CASE = re.compile(r'(.+?) for ("[^"]+")(?:, |$)')


def is_update(line: str) -> bool:
    """Whether an equation uses the previous value of its symbol, as in `t = t + 1`."""
    left, _, right = line.partition(" = ")
    return bool(re.search(rf"(?<!\w){re.escape(left)}(?!\w)", re.split("  +if ", right)[0]))


def equation(line: str, sign: str = "=") -> tuple[str, str, str]:
    """The left side, the right side with its sign, and the condition, as MathML each. Raises `NoNotation`."""
    found = LINE.fullmatch(line.strip())
    if not found:
        raise NoNotation(line)
    left, right, condition = found[1], found[2], found[3] or ""
    found_cases = list(CASE.finditer(right))
    if "".join(case[0] for case in found_cases) == right:  # `a for "x", b for "y"`
        named = [(parsed(case[1]), code(case[2])) for case in found_cases]
        if len(named) == 1:
            value, when = part(named[0][0]), math(words("for ") + named[0][1], found_cases[0][2])
        else:
            value, when = cases(named, "for "), ""
        return math(part(parsed(left)), left), math(row(op(sign), value), right), when
    tree = parsed(right)
    match tree:  # what stays as it was otherwise is a condition
        case ast.IfExp(test, body, ast.Name(other)) if other == left and not condition:
            tree, condition = body, ast.unparse(test)
        case ast.Call(ast.Attribute(ast.Dict(), "get"), [key, ast.Name(other)]) if other == left:
            tree.args = [key]
    when = math(words("if ") + part(parsed(condition)), condition) if condition else ""
    return math(part(parsed(left)), left), math(row(op(sign), part(tree)), right), when


def statements(lines: list[str]) -> list[str]:
    """Each equation as one line: where a bracket is open, it goes on in the next one."""
    found: list[str] = []
    for line in lines:
        if found and found[-1].count("(") > found[-1].count(")"):
            found[-1] += " " + line.strip()
        else:
            found.append(line.strip())
    return found


def table(lines: list[str]) -> str:
    """Equations as HTML, one below the other."""
    html = ""
    found = statements(lines)
    sign = "\N{LEFTWARDS ARROW}" if any(map(is_update, found)) else "="
    for line in found:
        left, right, condition = equation(line, sign)
        html += f"<tr><td>{left}</td><td>{right}</td>{f'<td>{condition}</td>' if condition else ''}</tr>"
    return f'<div class="equations"><table>{html}</table></div>'
