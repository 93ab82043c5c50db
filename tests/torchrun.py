"""Scripts in one or several processes: torchrun with gloo on the CPU, and the outcome of each check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

ROOT = Path(__file__).parents[1]


def run_python(*command: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a Python script that imports the packages of the checkout."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def python_output(*command: object, cwd: Path = ROOT) -> str:
    """The output of a Python script, which must succeed."""
    process = run_python(*command, cwd=cwd)
    assert process.returncode == 0, process.stderr
    return process.stdout


class Report:
    """The outcome of each check, by its name. A check that fails on one rank has failed on all."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"results-{dist.get_world_size()}.json"
        self.results: dict[str, str] = {}

    def check(self, name: str, call: Callable[[], None]) -> None:
        error = ""
        try:
            call()
        except Exception:  # reported for this rank, and the check fails on all
            error = f"{name}, rank {dist.get_rank()}: {traceback.format_exc()}"
            print(error, file=sys.stderr, flush=True)
        errors: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(errors, error)  # if the ranks have diverged, this ends the script
        self.results[name] = "\n".join(filter(None, errors))
        if dist.get_rank() == 0:
            self.path.write_text(json.dumps(self.results))


def launch(program: Path, world_size: int, folder: Path, timeout: int, **variables: str) -> tuple[dict[str, str], str]:
    """The report of a script that takes a folder, and the output of torchrun. `timeout` is in seconds."""
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size), str(program), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"  # some machines cannot resolve their own name
    with (folder / f"output-{world_size}.txt").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            ending = f"ended with {process.wait(timeout)}"
        except subprocess.TimeoutExpired:
            ending = f"was ended after {timeout} seconds"
        finally:
            stop(process)
        output.seek(0)
        text = output.read()
    results = folder / f"results-{world_size}.json"
    return json.loads(results.read_text()) if results.exists() else {}, f"torchrun {ending}:\n{text[-6000:]}"


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask torchrun to end, which ends its processes, too."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
