"""Where the code and the headings of a page may break, as HTML."""

from __future__ import annotations

import re

AT_BRACKETS_AND_DOTS = re.compile(r"(?<=[A-Za-z)][.])(?=[A-Za-z])|(?<=\w\()(?=\S)")
AT_CAPITALS = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")
LONG = re.compile(r"[a-z_]{25,}")
HEAD = re.compile(r"<th\b.*?</th>", re.DOTALL)
EXPONENT = re.compile(r"\d[\d.]*e-\d+")
WHOLE_CLASS_NAMES = ("which",)  # the pages whose tables have room for the names of classes
NAMES = re.compile(r'(?<=<span class="pre">)[^<]{12,}(?=<)|(?<=>)[^<>]*\w{16,}[^<>]*(?=<a class="headerlink")')


def allow_breaks(page: str, body: str) -> str:
    """Long names break after a dot, an opening bracket and an underscore, and before a capital in the name of a class.

    The numbers in the head of a table do not break, nor do the names of classes on some pages.
    """

    def breaking(match: re.Match[str]) -> str:
        name = AT_BRACKETS_AND_DOTS.sub("<wbr>", match[0])
        if page not in WHOLE_CLASS_NAMES:
            name = AT_CAPITALS.sub("<wbr>", name)
        return LONG.sub(lambda long: long[0].replace("_", "_<wbr>"), name)

    def kept_whole(head: re.Match[str]) -> str:
        return EXPONENT.sub(r'<span class="number">\g<0></span>', head[0])

    return HEAD.sub(kept_whole, NAMES.sub(breaking, body))
