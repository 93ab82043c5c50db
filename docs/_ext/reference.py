"""The reference from docstrings: their plain text as reST, lists of names as pages, and links to what is documented."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
import shutil
from abc import ABC
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Protocol, get_origin

import common_arguments
import equations
import signatures
import torch
from docutils import nodes
from docutils.parsers.rst import Directive, directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.autodoc.mock import mock
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.inspect import signature, stringify_signature

import optim
import timesched
from optim.scheduler import Scheduler
from timesched import integrations

log = logging.getLogger(__name__)
ROOT = Path(__file__).parents[2]
PACKAGES = ("timesched", "optim")
REFERENCE = ROOT / "docs/reference"
PAGES = "api"  # the folder in docs/reference of the pages that are written here; git ignores it
ADAPTERS = "adapters.txt"  # the file there that docs/reference/integrations.rst includes

CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
ARXIV = re.compile(r"(?<![/`])arXiv:(\d{4}\.\d{4,5})")
API = re.compile(r"^\.\. api:: (\S+)\n(?:   :module:\n|   :subclasses: (\w+)\n)*((?:\n|   .*\n)*)", re.MULTILINE)
STATE = re.compile(r" +(\w+): (.+), (\S+) = (.+?)(?:, if (.+))?")


# Docstrings


def prose(text: str) -> str:
    """A paragraph of a docstring as reST: code in backticks, formulas in backticks, and numbers of arXiv."""
    done = ""
    for i, piece in enumerate(CODE.split(text)):
        if i % 2:
            done += formula(piece) or f"``{piece}``"
        else:
            done += "\\ " if i and re.match(r"\w", piece) else ""
            plain = re.sub(r"\||(?<=\w)_(?!\w)", r"\\\g<0>", piece)  # in reST a substitution, and a reference
            done += ARXIV.sub(r"`arXiv:\1 <https://arxiv.org/abs/\1>`__", plain)
    return done


def formula(text: str) -> str:
    """The role of a formula, where the text is one: it has an operator between blanks, and a usual notation."""
    if not re.search(r" (\*\*|[-+*/]) ", text):
        return ""
    try:
        equations.inline(text)
    except equations.NoNotation:
        return ""
    return f":formula:`{text}`"


def rest(lines: list[str]) -> list[str]:
    """A docstring as reST. The sections Args, Raises and Returns are left to sphinx.ext.napoleon."""
    done: list[str] = []
    paragraph: list[str] = []

    def end_paragraph() -> None:
        done.extend(prose("\n".join(paragraph)).split("\n") if paragraph else [])
        paragraph.clear()

    i = 0
    while i < len(lines):
        line = lines[i]
        block = indented(lines, i + 1)
        is_state = line.startswith("State of a parameter of shape S")
        if line.startswith(">>>"):
            end_paragraph()
            while i < len(lines) and lines[i]:
                done.append(lines[i])
                i += 1
        elif line == "Formula:" or is_state:
            end_paragraph()
            done += state_table(line, block) if is_state else ["", ".. equations::", "", *block, ""]
            i += 1 + len(block)
        elif not line and block and any(" = " in text for text in block):
            end_paragraph()
            done += ["", ".. equations::", "", *block, ""]
            i += 1 + len(block)
        else:
            if not line or line.startswith("* "):
                end_paragraph()
                done.append("")
            if line:
                paragraph.append(line)
            i += 1
    end_paragraph()
    return [*done, ""]


def indented(lines: list[str], start: int) -> list[str]:
    end = start
    while end < len(lines) and lines[end].startswith("    "):
        end += 1
    return lines[start:end]


def state_table(head: str, lines: list[str]) -> list[str]:
    done = ["", head, "", ".. list-table::", "   :header-rows: 1", ""]
    rows = [("state", "shape", "symbol", "before the first step", "where")]
    for line in lines:
        found = STATE.fullmatch(line)
        if not found:
            raise ValueError(f"{line!r} is no line of a state: write `name: shape, symbol = value, if condition`.")
        name, shape, symbol, first, condition = found.groups()
        where = f":formula:`{condition}`" if condition else "always"
        rows.append((f"``{name}``", f"``{shape}``", f":formula:`{symbol}`", f":formula:`{first}`", where))
    if not any(row[4] != "always" for row in rows[1:]):
        rows = [(*row[:4], "") for row in rows]
    for row in rows:
        cells = [cell for cell in row if cell]
        done += [f"   {'*' if j == 0 else ' '} - {cell}" for j, cell in enumerate(cells)]
    return [*done, ""]


def rewrite(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    if isinstance(obj, type) and issubclass(obj, Scheduler):
        common = (inspect.getdoc(Scheduler) or "").splitlines()
        lines[:] = common_arguments.joined(lines, common, list(inspect.signature(obj).parameters))
    if what == "function" and signatures.has_overloads(obj):
        _, lines[:] = signatures.split_introduction(lines)
    lines[:] = rest(lines)
    if what == "class" and "" in lines:
        at = lines.index("")
        lines[at:at] = ["", f".. curve:: {name}", ""]


class Equations(Directive):
    has_content = True

    def run(self) -> list[nodes.Node]:
        return [nodes.raw("", equations.table(list(self.content)), format="html")]


def formula_role(
    name: str, rawtext: str, text: str, lineno: int, inliner: Any, options: Any = None, content: Any = ()
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    return [nodes.raw("", equations.inline(text), format="html")], []


# Pages


def imported(env: BuildEnvironment, name: str) -> ModuleType:
    with mock(env.config.autodoc_mock_imports):
        return importlib.import_module(name)


class Api(SphinxDirective):
    """A table of names with their first sentences, each of which leads to the page of the name.

    The argument is a module. The content names what of it is shown; without content it is all of `__all__`. The option
    `subclasses` names a class: the public classes below it are shown, except those that other lists name. With the
    option `module`, the docstring of the module stands above.
    """

    required_arguments = 1
    # As in all directives of Sphinx:
    option_spec = {"module": directives.flag, "subclasses": directives.unchanged}  # noqa: RUF012 (as in all directives)
    has_content = True

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        module = imported(self.env, name)
        names = shown_names(module, self.options.get("subclasses", ""), "\n".join(self.content))
        text: list[str] = []
        if "module" in self.options:
            text += [f".. py:module:: {name}", "", *rest(inspect.cleandoc(module.__doc__ or "").splitlines()), ""]
        text += [".. list-table::", "   :class: summary", ""]
        for short in names:
            first = (inspect.getdoc(getattr(module, short)) or "").split("\n\n")[0].replace("\n", " ")
            sentence = re.split(r"(?<=\.)\s", first)[0].rstrip(":")
            text += [f"   * - :py:obj:`~{name}.{short}`", f"     - {prose(sentence)}"]
        text += ["", ".. toctree::", "   :hidden:", "", *(f"   {PAGES}/{name}.{short}" for short in names)]
        parsed: list[nodes.Node] = self.parse_text_to_nodes("\n".join(text))
        return parsed


def shown_names(module: ModuleType, base: str, content: str) -> list[str]:
    if not base:
        return content.split() or module.__all__
    listed = {name for module_name, _, names in api_lists() if module_name == module.__name__ for name in names.split()}
    others = [(name, getattr(module, name)) for name in sorted(module.__all__, key=str.lower) if name not in listed]
    return [name for name, thing in others if isinstance(thing, type) and issubclass(thing, getattr(module, base))]


@cache
def api_lists() -> list[tuple[str, str, str]]:
    """The module, the option `subclasses` and the content of each directive `api`."""
    files = [*REFERENCE.glob("*.rst"), REFERENCE / PAGES / ADAPTERS]
    return [entry for file in files for entry in API.findall(file.read_text(encoding="utf-8"))]


def write_pages(app: Sphinx) -> None:
    """Writes the pages of all names that directives `api` show, as files, since Sphinx reads nothing else."""
    folder = REFERENCE / PAGES
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / ADAPTERS).write_text(adapter_sections(app.env), encoding="utf-8")
    for module_name, base, content in api_lists():
        module = imported(app.env, module_name)
        for short in shown_names(module, base, content):
            name = f"{module_name}.{short}"
            (folder / f"{name}.rst").write_text(page(app.env, name, getattr(module, short)), encoding="utf-8")


def adapter_sections(env: BuildEnvironment) -> str:
    """A section for each adapter of a trainer, with the public names that its module defines."""
    text = ""
    for info in pkgutil.iter_modules(integrations.__path__):
        module = imported(env, f"{integrations.__name__}.{info.name}")
        public = [(name, getattr(module, name)) for name in getattr(module, "__all__", ())]
        names = " ".join(name for name, thing in public if thing.__module__ == module.__name__)
        if names:
            text += f"{info.name}\n{'-' * len(info.name)}\n\n.. api:: {module.__name__}\n   :module:\n\n   {names}\n\n"
    return text


def page(env: BuildEnvironment, name: str, thing: Any) -> str:
    """The source of the page of a name, whose title is the name without its packages."""
    parts = name.split(".")
    title = ".".join(parts[2:] or parts[1:])
    kind = "function" if inspect.isroutine(thing) else "class"
    if inspect.isclass(thing) and issubclass(thing, Exception):
        kind = "exception"
    bases = "   :show-inheritance:\n" if inspect.isclass(thing) and public_bases(env, thing) else ""
    introduction = ""
    if kind == "function" and signatures.has_overloads(thing):
        lines, _ = signatures.split_introduction(inspect.cleandoc(thing.__doc__).splitlines())
        introduction = "\n".join(rest(lines)) + "\n"
    return f"{title}\n{'=' * len(title)}\n\n{introduction}.. auto{kind}:: {name}\n{bases}"


@cache
def public_modules(env: BuildEnvironment) -> list[ModuleType]:
    """The modules that say in `__all__` what is public."""
    found = []
    for package in PACKAGES:
        root = imported(env, package)
        modules = (imported(env, info.name) for info in pkgutil.walk_packages(root.__path__, package + "."))
        found += [root, *(module for module in modules if hasattr(module, "__all__"))]
    return found


def public_bases(env: BuildEnvironment, thing: Any) -> list[Any]:
    """The bases of a class; in place of one that is not public, its own bases."""
    public = {id(getattr(module, name)) for module in public_modules(env) for name in module.__all__}

    def shown(base: Any) -> list[Any]:
        cls = get_origin(base) or base
        if cls in (object, ABC, Generic, Protocol):
            return []
        if id(cls) in public or cls.__module__.partition(".")[0] not in PACKAGES:
            return [base]
        return [other for inherited in original_bases(cls) for other in shown(inherited)]

    bases = list(dict.fromkeys(other for base in original_bases(thing) for other in shown(base)))
    inherited: set[Any] = set()  # the bases of bases are not named
    for base in bases:
        inherited.update(getattr(get_origin(base) or base, "__mro__", ())[1:])
    return [base for base in bases if base not in inherited]


def original_bases(cls: Any) -> tuple[Any, ...]:
    bases: tuple[Any, ...] = cls.__dict__.get("__orig_bases__", cls.__bases__)
    return bases


def show_bases(app: Sphinx, name: str, thing: type, options: object, bases: list[Any]) -> None:
    """With the module of those of torch, some of which have the names of ours."""
    found = public_bases(app.env, thing)
    torchs = [getattr(base, "__module__", "").startswith("torch.") for base in found]
    names = [
        f"``{base.__module__.removesuffix('.optimizer')}.{base.__name__}``" if its else base
        for base, its in zip(found, torchs)
    ]
    bases[:] = names


def skip_classes(app: Sphinx, what: str, name: str, thing: object, skip: bool, options: object) -> bool | None:
    """A class in an attribute of a class is how it works inside, such as the formula of a scheduler."""
    return True if what == "class" and isinstance(thing, type) else None


def own_signature(app: Sphinx, what: str, name: str, thing: Any, *rest: object) -> tuple[str, None] | None:
    """What a constructor takes, where Sphinx looks at `__new__` before, which takes any arguments.

    So it is for classes below one of an absent trainer, and for schedules, which look there for unknown arguments. The
    classes of `optim` have a signature with the names in `**options`, to which this adds the types.
    """
    if what != "class" or not isinstance(thing, type):
        return None
    has_new = getattr(thing, "__sphinx_mock__", False) or issubclass(thing, (timesched.Schedule, Scheduler))
    has_options = hasattr(thing, "__signature__")
    if not has_new and not has_options:
        return None
    if thing is timesched.Schedule:  # which is not made itself
        return "", None
    own = signature(thing.__init__, bound_method=True)  # type: ignore[misc]  # of this very class
    if has_options:
        own = signatures.name_options(thing, own)
    return stringify_signature(own, unqualified_typehints=True, show_return_annotation=False), None


def check_complete(app: Sphinx, env: BuildEnvironment) -> None:
    """Warns of each public name without a page, under whatever name it is documented."""
    documented: set[int] = set()
    for full_name in env.domains.python_domain.objects:
        module_name, _, name = full_name.rpartition(".")
        if module_name in PACKAGES or module_name.startswith(tuple(package + "." for package in PACKAGES)):
            try:
                documented.add(id(getattr(imported(env, module_name), name, None)))
            except ModuleNotFoundError:  # a method: what stands before its name is a class
                continue
    for module in public_modules(env):
        for name in module.__all__:
            thing = getattr(module, name)
            if not isinstance(thing, ModuleType) and id(thing) not in documented:
                log.warning("%s.%s is public and has no page: name it in docs/reference", module.__name__, name)


# Links


def link_names(app: Sphinx, doctree: nodes.document) -> None:
    """Code that names something documented becomes a link; but not "Composer's `State`" or "`StepLR` of torch"."""
    for literal in list(doctree.findall(nodes.literal)):
        name = literal.astext().removesuffix("()")
        is_link = isinstance(literal.parent, addnodes.pending_xref | nodes.reference | nodes.title)
        if is_link or name == "scheduler" or not re.fullmatch(r"[A-Za-z_][\w.]*", name):  # a module and a variable
            continue
        around = [child.astext() if isinstance(child, nodes.Text) else "" for child in literal.parent.children]
        index = literal.parent.index(literal)
        before, after = "".join(around[max(index - 1, 0) : index]), "".join(around[index + 1 : index + 2])
        if re.search(r"[\u2019']s\s$", before) or re.match(r"\sof ([A-Z]\w+|torch|optax)\b", after):
            continue
        described: Any = next((parent[0] for parent in parents(literal) if isinstance(parent, addnodes.desc)), {})
        reference = addnodes.pending_xref(
            "", refdomain="py", reftype="obj", reftarget=name, refdoc=app.env.docname, refexplicit=False
        )
        reference["py:module"] = described.get("module") or home(name)
        reference["py:class"] = described.get("class") or described.get("fullname")
        literal.replace_self(reference)
        reference += literal


def parents(node: nodes.Node) -> Iterator[Any]:
    while node.parent is not None:
        node = node.parent
        yield node


def home(name: str) -> str:
    """The module that a guide means by a name; none for a name that torch has too."""
    first = name.partition(".")[0]
    if hasattr(torch.optim, first) or hasattr(torch.optim.lr_scheduler, first):
        return ""
    homes = [module.__name__ for module in (timesched, optim, optim.lr_scheduler) if first in module.__all__]
    return homes[0] if homes else ""


def trim_code(app: Sphinx, doctree: nodes.document) -> None:
    """The blank line at the end of a code block is for doctest."""
    for block in doctree.findall(nodes.literal_block):
        block.rawsource = block.astext().rstrip("\n")
        block.children = [nodes.Text(block.rawsource)]


def relinked(text: str, folder: Path, app: Sphinx) -> str:
    """Markdown with its relative links as the present page needs them; GitHub reads them from the file's own folder."""
    pages: dict[str, str] = app.config.pages_of_files
    here = (Path(app.srcdir) / app.env.docname).parent

    def target(match: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / match[2]))
        if not path.exists():
            return match[0]
        inside = pages.get(str(path.relative_to(ROOT)), str(path))
        label = "" if match[1] == match[2] and inside.endswith(".md") else match[1]  # the title, not the file's name
        return f"[{label}]({os.path.relpath(Path(app.srcdir) / inside, here)}"

    return re.sub(r"\[([^]]*)\]\((?!\w+:)([^)#\s]+)", target, text)


def read(app: Sphinx, docname: str, text: list[str]) -> None:
    text[0] = relinked(text[0], (Path(app.srcdir) / docname).parent, app)


def include(app: Sphinx, path: Path, docname: str, text: list[str]) -> None:
    text[0] = relinked(text[0], (Path(app.srcdir) / path).resolve().parent, app)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("pages_of_files", {}, "env", dict)
    app.add_directive("equations", Equations)
    app.add_directive("api", Api)
    app.add_role("formula", formula_role)
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", rewrite, priority=400)  # before sphinx.ext.napoleon
    app.connect("autodoc-process-signature", own_signature)
    app.connect("autodoc-process-bases", show_bases)
    app.connect("autodoc-skip-member", skip_classes)
    app.connect("source-read", read)
    app.connect("include-read", include)
    app.connect("doctree-read", link_names)
    app.connect("doctree-read", trim_code)
    app.connect("env-updated", check_complete)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
