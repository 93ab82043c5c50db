"""The galleries: pictures of all schedules and absolute-value schedulers, drawn when the site is built.

A page begins with small pictures of all, in groups. The code below a large picture draws it. A public class without a
picture is a warning, which fails the build. The reference shows the small pictures, too. The calls and their groups are
in the tables of the tests.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import matplotlib
import torch
from docutils import nodes
from matplotlib import pyplot
from picture_style import LR_LABEL, as_svg, for_page, style
from reference import ROOT, rest
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from thumbnails import small, thumbnail

import timesched
from optim import lr_scheduler
from tests.laws.rows import EXAMPLES, pictures
from tests.optim.schedulers.rows import PICTURES
from timesched.drawing.svg import COLOURS

log = logging.getLogger(__name__)

# Letters are smaller than in other pictures, because these have long legends.
SIZES = {"font.size": 10, "axes.labelsize": 10, "legend.fontsize": 9, "xtick.labelsize": 9, "ytick.labelsize": 9}
WIDTH = 4.8  # inches: letters are still readable where a phone makes a picture smaller

MODULES = {"schedules": timesched, "closed_forms": lr_scheduler}  # by the galleries' pages
GROUPS = {"schedules": EXAMPLES, "closed_forms": PICTURES}
# The base class; another name of ChainedLR; and the values of another scheduler, times a number of each group.
WITHOUT_PICTURE = {"LRScheduler", "ChainedScheduler", "ScalePerParamLR"}


def public_names(page: str) -> list[str]:
    """The names of the classes that a page must show."""
    if page == "closed_forms":
        return [name for name in lr_scheduler.__all__ if name not in WITHOUT_PICTURE]
    classes = [(name, getattr(timesched, name)) for name in timesched.__all__]
    schedules = [(name, cls) for name, cls in classes if isinstance(cls, type) and issubclass(cls, timesched.Schedule)]
    return [name for name, cls in schedules if cls is not timesched.Schedule]


def wrapped(code: str) -> str:
    """Code without a line that is longer than 88 columns: the arguments of a call stand on lines of their own."""
    for pattern in (r"(.*?\()(.*)(\)\.(?:plot|values)\(.*)", r"(    .*?, )(\[.*)()"):
        code = re.sub(rf"(?m)^(?=.{{89}}){pattern}$", r"\1\n    \2\n\3", code)
    return re.sub(r" *\n+", "\n", code)


def schedule_picture(calls: tuple[str, ...]) -> tuple[str, str]:
    labels = differences(calls)
    lines = [f"{call}.plot(run, label='{label}', ax=ax)" for call, label in zip(calls, labels)]
    code = "\n".join(["ax = " + lines[0].replace(", ax=ax", ""), *lines[1:]]) if labels[0] else f"{calls[0]}.plot(run)"
    code = wrapped(code)
    with matplotlib.rc_context(style(calls[0]) | SIZES):
        exec(code, dict(vars(timesched), run=timesched.Horizon("1000ba")))
        ax = pyplot.gca()
        ax.set_ylabel(ax.get_ylabel().replace("multiplier", LR_LABEL))
        return code, svg(ax, calls)


def closed_form_picture(calls: tuple[str, ...]) -> tuple[str, str]:
    code = wrapped("\n".join(f"{call}.values(120)" for call in calls))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    with matplotlib.rc_context(style(calls[0]) | SIZES):
        _, ax = pyplot.subplots(layout="constrained")
        for call, label, colour in zip(calls, differences(calls), COLOURS):
            ax.plot(eval(call, dict(vars(lr_scheduler), optimizer=optimizer)).values(120), color=colour, label=label)
        ax.set(xlabel="steps", ylabel="learning rate")
        ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
        return code, svg(ax, calls)


def differences(calls: Iterable[str]) -> list[str]:
    """The arguments of each call that not all calls have in common."""
    found = []
    for text in calls:
        call: Any = ast.parse(text, mode="eval").body
        found.append([ast.get_source_segment(text, each) or "" for each in (*call.args, *call.keywords)])
    common = set.intersection(*map(set, found))
    return [", ".join(each for each in arguments if each not in common) for arguments in found]


def svg(ax: Any, calls: tuple[str, ...], inches: float = 2.1) -> str:
    """The figure of some axes as part of a page, in the colour of its text, with the legend below; it is closed."""
    figure = ax.figure
    if len(calls) > 1:
        labels = differences(calls)
        columns = max(1, min(len(calls), 68 // (max(map(len, labels)) + 8)))
        if ax.get_legend():
            ax.get_legend().remove()
        figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=columns)
        inches += 0.2 * -(-len(calls) // columns)
    figure.set_size_inches(WIDTH, inches)
    text = as_svg(figure)
    pyplot.close(figure)
    return for_page(text, calls[0])


def summary(thing: Any) -> list[str]:
    """The first paragraph of a docstring, as reST."""
    return rest((inspect.getdoc(thing) or "").partition("\n\n")[0].splitlines())


@cache
def thumbnail_of(name: str) -> tuple[str, str]:
    """The gallery that has a class of a public name, and its small picture; "" for none."""
    package, _, short = name.rpartition(".")
    if package == "timesched":
        return "schedules", "".join(thumbnail(calls[0], '"1000ba"', *calls[1:]) for calls in pictures(short)[:1])
    if package == "optim.lr_scheduler":
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        calls = [call for calls in pictures(short, PICTURES) for call in calls]
        values = [eval(call, dict(vars(lr_scheduler), optimizer=optimizer)).values(120) for call in calls]
        lines = [[(float(i), value) for i, value in enumerate(each)] for each in values]
        return "closed_forms", small(lines, calls[0]) if calls else ""
    return "", ""


def recipes_of(name: str) -> Iterator[tuple[str, str]]:
    """The sections of docs/recipes.md whose first example calls a schedule: title and anchor."""
    for section in (ROOT / "docs/recipes.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        title = section.partition("\n")[0]
        if f"{name}(" in section.partition("```\n")[0]:
            yield title, nodes.make_id(title)


class Curve(SphinxDirective):
    """In the reference: the small picture of a class, with links to its gallery and to the recipes that use it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name: str = self.arguments[0]
        if name.startswith("optim.weight_decay_scheduler."):  # the same curve
            stem = name.rpartition(".")[2].removesuffix("WD")
            name = f"optim.lr_scheduler.{stem if hasattr(lr_scheduler, stem) else stem + 'LR'}"
        page, picture = thumbnail_of(name)
        if not picture:
            return []
        short = name.rpartition(".")[2]
        links = [("Gallery", f"gallery/{page}", short.lower())]
        if page == "schedules":
            links += [(f"Recipe: {title}", "recipes", anchor) for title, anchor in recipes_of(short)]
        paragraph = nodes.paragraph("", "", classes=["curve-links"])
        for i, (text, docname, anchor) in enumerate(links):
            uri = f"{self.env.app.builder.get_relative_uri(self.env.docname, docname)}#{anchor}"
            paragraph += [nodes.Text(" · "), nodes.reference("", text, refuri=uri, internal=True)][not i :]
        return [nodes.raw("", f'<div class="curve">{picture}</div>', format="html"), paragraph]


class Gallery(SphinxDirective):
    """Small pictures of all classes, the content of the directive, and all entries."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        page = self.arguments[0]
        groups = {title: dict.fromkeys(re.findall(r"(?m)^\w+", calls)) for title, calls in GROUPS[page].items()}
        shown = [name for names in groups.values() for name in names]
        for name in sorted({*public_names(page)} - {*shown}):
            log.warning("%s is public and has no picture: give it an example", name)
        html, package = "", MODULES[page].__name__
        for title, names in groups.items():
            cells = [
                f'<a href="#{name.lower()}">{thumbnail_of(f"{package}.{name}")[1]}<span class="pre">{name}</span></a>'
                for name in names
            ]
            html += f'<div style="--n:{len(names)}"><h3>{title}</h3>{"".join(cells)}</div>'
        head = nodes.raw("", f'<div class="thumbnails">{html}</div>', format="html")
        return [head, *self.parse_content_to_nodes(), *(self.section(page, name) for name in shown)]

    def section(self, page: str, name: str) -> nodes.section:
        section = nodes.section("", nodes.title("", name), names=[nodes.fully_normalize_name(name)])
        self.state.document.note_implicit_target(section, section)
        module, draw = MODULES[page], schedule_picture if page == "schedules" else closed_form_picture
        section += self.rest(summary(getattr(module, name)))
        for calls in pictures(name, GROUPS[page]):
            code, picture = draw(calls)
            section += nodes.raw("", f'<div class="picture">{picture}</div>', format="html")
            section += nodes.literal_block(code, code, language="python")
        section += self.rest([f"All arguments: ``{module.__name__}.{name}``."])
        return section

    def rest(self, lines: list[str]) -> list[nodes.Node]:
        found: list[nodes.Node] = self.parse_text_to_nodes("\n".join(["````{eval-rst}", *lines, "````"]))
        return found


def setup(app: Sphinx) -> dict[str, bool]:
    matplotlib.use("agg")
    app.add_directive("gallery", Gallery)
    app.add_directive("curve", Curve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
