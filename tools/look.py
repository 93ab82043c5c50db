#!/usr/bin/env python3
"""Open all pages of the built site in a browser at two widths, and list what a reader would trip over.

    python3 tools/look.py                  all pages
    python3 tools/look.py index.html       these pages

Run `make docs` first. The script needs a Chromium, as tools/search.py does. It lists pages that are wider than the
window, pages with little text, pictures that do not load, narrow cells of tables, and code in small letters. The exit
code is 1 if it lists anything.
"""

import argparse
import json
import sys
from pathlib import Path

from search import SITE, find_chromium, run_in_page

WIDTHS = (1280, 400)  # pixels: a laptop and a phone

# Runs in an empty page, loads each page of the site into a frame, and writes down what it finds.
SCRIPT = """
const look = (page, width, place) => {
  const found = [];
  const root = place.documentElement;
  if (root.scrollWidth > width) found.push(`is ${root.scrollWidth} pixels wide`);
  const main = place.querySelector('[role="main"]');
  if (!main || main.innerText.trim().length < 40) found.push("has less than 40 letters");
  for (const image of place.images) if (!image.naturalWidth) found.push(`lacks the picture ${image.src}`);
  for (const cell of place.querySelectorAll('[role="main"] td')) {
    const width = cell.getBoundingClientRect().width;
    if (cell.innerText.length > 60 && width < 90)
      found.push(`has a cell of ${Math.round(width)} pixels: ${cell.innerText.slice(0, 40)}`);
  }
  for (const code of place.querySelectorAll("code, pre"))
    if (code.offsetWidth && parseFloat(place.defaultView.getComputedStyle(code).fontSize) < 10.5) {
      found.push(`has code of ${place.defaultView.getComputedStyle(code).fontSize}: ${code.innerText.slice(0, 40)}`);
      break;
    }
  return found.map((text) => [page, width, text]);
};
window.addEventListener("load", async () => {
  const found = [];
  const frame = document.createElement("iframe");
  frame.style.height = "900px";
  document.body.append(frame);
  for (const width of WIDTHS) {
    frame.style.width = `${width}px`;
    frame.style.border = "none";
    for (const page of PAGES) {
      await new Promise((resolve) => {
        frame.onload = resolve;
        frame.src = page;
      });
      found.push(...look(page, width, frame.contentDocument));
    }
  }
  const output = document.createElement("pre");
  output.textContent = JSON.stringify(found);
  document.body.replaceChildren(output);
});
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Look at all pages of the built site in a browser.")
    parser.add_argument("page", nargs="*", help="pages to look at (default: all)")
    parser.add_argument("--site", type=Path, default=SITE, help="the folder of the built site")
    arguments = parser.parse_args()
    pages = arguments.page or sorted(str(path.relative_to(arguments.site)) for path in arguments.site.rglob("*.html"))
    pages = [page for page in pages if not page.startswith(("_", "404", "search"))]
    script = f"const PAGES = {json.dumps(pages)}, WIDTHS = {json.dumps(WIDTHS)};{SCRIPT}"
    page = f"<!DOCTYPE html><html><body><script>{script}</script></body></html>"
    found = json.loads(run_in_page(find_chromium(), arguments.site, page))
    for name, width, text in found:
        print(f"{name} at {width} pixels {text}")
    print(f"{len(found)} places on {len(pages)} pages")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
