"""Pictures with text become part of the page, so that the text has the page's colour in light and in dark mode.

The file itself has gray text, for GitHub and other readers of the Markdown.
"""

from __future__ import annotations

from pathlib import Path

from docutils import nodes
from picture_style import for_page
from sphinx.application import Sphinx

STATIC = Path(__file__).parents[1] / "_static"


def inline_pictures(app: Sphinx, doctree: nodes.document) -> None:
    """Replace each image of an SVG file that has text by the SVG itself."""
    for image in list(doctree.findall(nodes.image)):
        file = STATIC / Path(image["uri"]).name
        if file.suffix == ".svg" and file.exists() and "<text" in (svg := file.read_text(encoding="utf-8")):
            picture = for_page(svg, image.get("alt", ""))
            image.replace_self(nodes.raw("", f'<span class="picture">{picture}</span>', format="html"))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-read", inline_pictures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
