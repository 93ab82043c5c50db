#!/usr/bin/env python3
"""Type queries into the search of the built site and look at the first hits: ``python3 tools/search.py``.

Run `make docs` first. The script needs a Chromium (Debian: chromium), which it finds on the PATH or in the variable
CHROMIUM. The browser loads the search page once and runs all queries there. Each query of QUERIES has a pattern, which
the first hit must match, as "page.html#anchor". The hits of queries that are passed as arguments are printed instead.
The exit code is 1 if a query fails.
"""

import argparse
import html
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SITE = Path(__file__).resolve().parents[1] / "build/docs"
# Runs in the search page, and replaces it with the hits of each query, the best one first.
SCRIPT = """
window.addEventListener("load", () => {
  const hits = (query) => {
    const found = Search._performSearch(...Search._parseQuery(query)).reverse();
    return found.map(([page, title, anchor]) => [page + ".html" + anchor, title]);
  };
  const output = document.createElement("pre");
  output.textContent = JSON.stringify(QUERIES.map(hits));
  document.body.replaceChildren(output);
});
"""

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
    "resume": r"checkpoints",
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
    "cooldown": r"branches|Cooldown|checkpoints",
    "1-sqrt": r"WarmupStableDecay|recipes|warmupstabledecay|Cooldown",
    "REX": r"RexScheduler|rexscheduler",
    "noam": r"InverseSquareRoot|inversesquareroot|recipes",
    "FSDP": r"distributed",
    "shift": r"SequenceScheduler",
    "EMA": r"averages",
    "SWA": r"averages",
    "model averaging": r"averages",
    "merge checkpoints": r"merging",
    "evaluate every": r"loop.html#events",
    "save before cooldown": r"loop.html#events",
    "default weight decay": r"coming_from/torch",
    "torchtitan": r"trainers/torchtitan",
    "schedule free": r"comparison",
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
    "jax": r"comparison",
    "TPU": r"compatibility",
    "XLA": r"compatibility|compiling",
    "LambdaLR equivalent": r"coming_from/torch",
    "bf16": r"low_precision",
    "quickstart": r"quickstart",
    "getting started": r"quickstart|get_started",
    "learning rate schedule": r"which",
    "per layer learning rate": r"learning_rates",
    "freeze layers": r"learning_rates.html#freeze",
    "mixed precision": r"low_precision|gradscaler",
    "AMP": r"low_precision|gradscaler",
    "LoRA": r"learning_rates.html#train-lora",
    "visualize schedule": r"loop.html#ask|command_line",
    "jupyter": r"loop.html#ask",
    "API reference": r"reference/index",
    "changelog": r"project/changes",
    "license": r"project/license",
    "faq": r"troubleshooting",
    "troubleshooting": r"troubleshooting",
    "glossary": r"glossary",
    "learning rate finder": r"trainers/lightning.html#lr_find",
    "num_train_epochs": r"steps_to_tokens|coming_from/hugging_face",
    "epsilon": r"coming_from/torch.html#optimizers",
    "muP": r"learning_rates.html#use-the",
    "lr is 0": r"troubleshooting.html#the-learning-rate-stays-0",
    "learning rate not changing": r"troubleshooting.html#the-learning-rate-never",
    "8-bit Adam": r"low_precision",
    "seconds": r"loop.html#recipe",
    "linear scaling rule": r"batch_size_schedules.html#scale",
    "lamb": r"optim.Lamb",
    "custom optimizer": r"tutorials/your_own",
    "custom scheduler": r"tutorials/your_own",
    "momentum schedule": r"loop.html#what-bind",
    "multiple GPUs": r"distributed",
    "batch ramp": r"batch_size_schedules",
    "lr_scheduler.step() before optimizer.step()": r"troubleshooting.html#userwarning",
    "UserWarning": r"troubleshooting.html#userwarning",
    "superseded": r"troubleshooting",
    "FSDP2": r"distributed",
}
ADDED = "/added.html"  # the address of the page that a script adds to the site
SHOWN = 3  # the number of hits that are printed for a query that fails


class Site(SimpleHTTPRequestHandler):
    """Serves the site, and one more page at the address ADDED, without printing the requests."""

    added = ""

    def do_GET(self) -> None:
        if self.path != ADDED:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(self.added.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def find_chromium() -> str:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        sys.exit("There is no Chromium on the PATH. Install one (Debian: chromium), or set CHROMIUM.")
    return chromium


def run_in_page(chromium: str, site: Path, page: str) -> str:
    """Load a page as part of the site, and return the text of the <pre> with which its script replaces the body."""
    if not (site / "searchindex.js").exists():
        sys.exit(f"{site} is not a built site: run `make docs` first.")
    Site.added = page
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Site, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=600000", "--dump-dom"]
    url = f"http://127.0.0.1:{server.server_port}{ADDED}"
    done = subprocess.run([chromium, *options, url], capture_output=True, text=True, check=True, timeout=600)
    server.shutdown()
    found = re.search(r"<body[^>]*><pre[^>]*>(.*?)</pre>", done.stdout, re.DOTALL)
    if not found:
        sys.exit(f"The page did not run.\n{done.stderr}")
    return html.unescape(found[1])


def hits(site: Path, queries: "list[str]") -> "list[list[tuple[str, str]]]":
    """The targets and titles of the hits of each query, in the order of the search page."""
    script = f"<script>const QUERIES = {json.dumps(queries)};{SCRIPT}</script></body>"
    page = (site / "search.html").read_text(encoding="utf-8").replace("</body>", script)
    found = json.loads(run_in_page(find_chromium(), site, page))
    return [[(target, title) for target, title in each] for each in found]


def main() -> None:
    parser = argparse.ArgumentParser(description="Check the hits of the search in the built site.")
    parser.add_argument("query", nargs="*", help="queries whose hits are printed instead of the script's own queries")
    parser.add_argument("--site", type=Path, default=SITE, help="the folder of the built site")
    arguments = parser.parse_args()
    queries = arguments.query or list(QUERIES)
    failed = 0
    for query, results in zip(queries, hits(arguments.site, queries)):
        expected = "" if arguments.query else QUERIES[query]
        places = [i for i, (target, _) in enumerate(results) if re.search(expected, target)]
        good = places[:1] == [0]
        failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {query!r}: {len(results)} hits", end="")
        print(f", the first that fits is number {places[0] + 1}" if places else ", none that fits")
        for target, title in results[: 10 if arguments.query else 0 if good else SHOWN]:
            print(f"       {target}  {title}")
    print(f"{failed} of {len(queries)} queries failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
