"""Scripts in one or several processes: ranks with gloo on the CPU, and the outcome of each check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
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
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
    output = output_of_ranks([*torchrun, str(program), str(folder)], folder, timeout, **variables)
    return read_report(folder, world_size), output


def start_ranks(main: Callable[[Path], None], world_size: int, folder: Path) -> None:
    """Run `main(folder)` on so many ranks. An error of one ends all.

    torchrun does the same, and each of its ranks imports torch again. A fork shares this process's imports.
    """
    method = "fork" if sys.platform == "linux" else "spawn"
    torch.multiprocessing.start_processes(_run_rank, (main, world_size, folder), world_size, start_method=method)


def _run_rank(rank: int, main: Callable[[Path], None], world_size: int, folder: Path) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE=str(world_size)
    )
    address = (folder / f"address-{world_size}").as_uri()
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size, timeout=timeout)
    main(folder)
    dist.barrier()
    dist.destroy_process_group()


def read_report(folder: Path, world_size: int) -> dict[str, str]:
    """The outcome of each check that ended."""
    path = folder / f"results-{world_size}.json"
    results: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return results


def output_of_ranks(command: list[str], folder: Path, timeout: int, **variables: str) -> str:
    """The output of a Python script that starts ranks. `timeout` is in seconds."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"  # some machines cannot resolve their own name
    with (folder / "output.txt").open("w+") as output:
        process = subprocess.Popen([sys.executable, *command], env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            ending = f"ended with {process.wait(timeout)}"
        except subprocess.TimeoutExpired:
            ending = f"was ended after {timeout} seconds"
        finally:
            stop(process)
        output.seek(0)
        text = output.read()
    return f"The script {ending}:\n{text[-6000:]}"


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the script to end, which ends its ranks, too."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
