"""The documentation site, built by `make docs`. _ext/reference.py makes the reference from docstrings.

The queries of tools/search.py show whether its search finds what people ask for.
"""

import logging
import sys
from importlib.resources import files
from pathlib import Path

from fontTools import subset
from sphinx.application import Sphinx

import timesched
from tools.adapters import ALL_PACKAGES

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "timesched"
author = "the timesched authors"
copyright = author
release = timesched.__version__
# A placeholder until the project is published. The links at the foot of each page begin with this address.
repository = "https://github.com/OWNER/timesched"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "reference",
    "gallery",
    "static_pictures",
    "webpages",
]
exclude_patterns = ["_ext", "_static", "_templates"]
templates_path = ["_templates"]
html_theme = "furo"
html_title = f"timesched {release}"
html_favicon = "_static/favicon.svg"
html_additional_pages = {"404": "404.html"}  # for a server that shows it in the place of a page that is not there
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_context = {"repository": repository}
html_copy_source = False

myst_heading_anchors = 3  # as GitHub makes them, for the links between pages
# Files outside docs/ that links lead to, and the pages that include them.
pages_of_files = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changes.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "benchmarks/README.md": "project/benchmarks.md",
}

autodoc_mock_imports = ALL_PACKAGES  # of the trainers
autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False  # what a subclass does not describe is described at its base
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 72

# The button copies only the lines that a reader types.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"
# The lines to paste, in the table with pictures of the page about schedules, have a button, too.
copybutton_selector = "div.highlight pre, table:has(td img) td:nth-child(3) code"

nitpicky = True
nitpick_ignore_regex = [
    # Code that names nothing documented stays code.
    (r"py:obj", r".*"),
    # Python's and torch's own: links to other sites would need the network.
    (r"py:(class|exc|meth|func|data|attr)", r"(?!timesched|optim).*"),
    # Types in signatures that a user meets nowhere else.
    (
        r"py:class",
        r"timesched\.(run\.horizon\.BatchSizes|maths\.positions\.Usage|time\.(units\.EpochCounter|value\.TValue))",
    ),
    (r"py:class", r"timesched\.binding\.(saved\.StateContents|owner\.Refusal)"),
    (r"py:class", r"timesched\.(batch_size\.sampler\.Indices|integrations\.(common\.Average|composer\._RunClock))"),
    (r"py:class", r"optim\.(step\.work\.Work|step\.rule_optimizer\.RuleOptimizer|initial_state\.AnyOptimizer)"),
    (r"py:class", r"optim\.groups\.(parameters\.NamedParameter|rules\.Selector)"),
]


def copy_math_font(app: Sphinx, error: "Exception | None") -> None:
    """A font of brackets and roots that grow, which few systems have: the letters and signs of formulas alone."""
    logging.getLogger("fontTools").setLevel(logging.ERROR)
    options = subset.Options()
    options.flavor = "woff"
    font = subset.load_font(str(files("ziamath.fonts") / "STIXTwoMath-Regular.ttf"), options)
    subsetter = subset.Subsetter(options)
    latin_and_greek = [*range(0x20, 0x7F), *range(0x391, 0x3CA)]
    in_italics = [0x210E, *range(0x1D434, 0x1D468), *range(0x1D6E2, 0x1D71C)]
    signs = map(ord, "‖⌊⌋⌈⌉−⋅∑∏√∞∈∉≤≥≠\N{FUNCTION APPLICATION}")
    subsetter.populate(unicodes=[*latin_and_greek, *in_italics, *signs])
    subsetter.subset(font)
    subset.save_font(font, str(app.outdir / "_static" / "STIXTwoMath.woff"), options)


def setup(app: Sphinx) -> None:
    app.connect("build-finished", copy_math_font)
