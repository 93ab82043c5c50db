#!/usr/bin/env python3
"""Type queries into the search box of the built site and look at the first hits: ``python3 tools/search.py``.

Run `make docs` first. The script needs a Chromium (Debian: chromium), which it finds on the PATH or in the variable
CHROMIUM. Each query of QUERIES has patterns. One of the first hits must match one of them, as "page.html#anchor". The
hits of queries that are passed as arguments are printed instead. The exit code is 1 if a query fails.
"""

import argparse
import html
import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

SITE = Path(__file__).resolve().parents[1] / "build/docs"
HIT = re.compile(r'<li class="[^"]*kind-[^"]*"><a href="([^"?#]*)(?:\?[^"#]*)?(#[^"]*)?"[^>]*>(.*?)</a>')

# Queries of readers, and the pages with their answers.
QUERIES = {
    "WSD": r"which|recipes.html#|WarmupStableDecay",
    "trapezoidal": r"which|recipes.html#|WarmupStableDecay",
    "warmup": r"which|gallery/schedules|WithWarmup",
    "warm-up": r"which|gallery/schedules|WithWarmup",
    "cosine": r"CosineAnnealing\w*Scheduler|gallery/schedules",
    "OneCycle": r"OneCycle",
    "one cycle": r"OneCycle|onecycle",
    "muon": r"muon",
    "AdamW": r"AdamW",
    "resume": r"checkpoints|resuming",
    "checkpoint": r"checkpoints",
    "weight decay": r"weight_decay|groups|loop",
    "tokens": r"loop.html#times|reference/time",
    "lr": r"which|lr_scheduler|reference/schedules|gallery/schedules",
    "betas": r"loop.html#what-bind|schedulers|binding",
    "hold_tensors": r"compiling|hold_tensors",
    "LambdaLR": r"coming_from/torch|binding|bind",
    "LinearWarmup": r"LinearWithWarmup|linearwithwarmup",
    "scheduler not stepping": r"loop",
    "gradient accumulation": r"loop|trainers",
    "DeepSpeed": r"trainers/deepspeed",
    "install": r"index.html",
    "cooldown": r"Cooldown|cooldown|checkpoints",
    "1-sqrt": r"WarmupStableDecay|recipes|warmupstabledecay|Cooldown",
    "REX": r"RexScheduler|rexscheduler",
    "noam": r"InverseSquareRoot|inversesquareroot|recipes",
    "FSDP": r"checkpoints|muon_ranks",
    "shift": r"SequenceScheduler",
    "EMA": r"averages",
    "SWA": r"averages",
    "model averaging": r"averages",
    "merge checkpoints": r"merging",
    "evaluate every": r"loop.html#events",
    "save before cooldown": r"loop.html#events",
    "default weight decay": r"coming_from/torch",
    "torchtitan": r"trainers/torchtitan",
    "schedule free": r"preinitialize|comparison",
    "ReduceLROnPlateau": r"coming_from/torch",
    "get_cosine_schedule_with_warmup": r"coming_from/hugging_face",
    "get_linear_schedule_with_warmup": r"coming_from/hugging_face",
    "fine-tuning": r"which|recipes.html#fine",
    "transformers": r"trainers/hugging_face",
    "Lightning": r"trainers/lightning",
    "SFTTrainer": r"trainers/hugging_face",
    "torch.compile": r"compiling",
    "momentum": r"loop.html#what-bind",
    "epochs": r"loop.html#times",
    "batch size": r"batch_size_schedules",
    "third-party": r"preinitialize",
    "YAML": r"config",
    "SGDR": r"WarmRestarts",
    "D2Z": r"recipes.html#linear",
    "bf16": r"low_precision",
}
FIRST = 3  # the number of hits that count


class Quiet(SimpleHTTPRequestHandler):
    """Serves the site without printing a line for each request."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def hits(chromium: str, address: str, query: str) -> "list[tuple[str, str]]":
    """The targets and titles of the hits on the search page, in its order."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000", "--dump-dom"]
    url = f"{address}/search.html?q={quote(query)}"
    done = subprocess.run([chromium, *options, url], capture_output=True, text=True, check=True, timeout=120)
    return [
        (page + (anchor or ""), html.unescape(re.sub("<[^>]*>", "", title)))
        for page, anchor, title in HIT.findall(done.stdout)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Check the hits of the search in the built site.")
    parser.add_argument("query", nargs="*", help="queries whose hits are printed instead of the script's own queries")
    parser.add_argument("--site", type=Path, default=SITE, help="the folder of the built site")
    arguments = parser.parse_args()
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        sys.exit("tools/search.py: no Chromium on the PATH: install one (Debian: chromium), or set CHROMIUM.")
    if not (arguments.site / "searchindex.js").exists():
        sys.exit(f"tools/search.py: {arguments.site} is no built site: run `make docs` first.")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(arguments.site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    failed = 0
    for query in arguments.query or QUERIES:
        results = hits(chromium, f"http://127.0.0.1:{server.server_port}", query)
        expected = "" if arguments.query else QUERIES[query]
        places = [i for i, (target, _) in enumerate(results) if re.search(expected, target)]
        good = bool(places) and places[0] < FIRST
        failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {query!r}: {len(results)} hits", end="")
        print(f", the first that fits is number {places[0] + 1}" if places else ", none that fits")
        for target, title in results[: 10 if arguments.query else 0 if good else FIRST]:
            print(f"       {target}  {title}")
    server.shutdown()
    print(f"{failed} of {len(arguments.query or QUERIES)} queries failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
