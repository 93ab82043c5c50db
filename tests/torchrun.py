"""Scripts in one or several processes: ranks with gloo on the CPU, and the outcome of each check."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).parents[1]
TIMEOUT = 300  # seconds, for a script
# What a fork of `run_forked` has: torch with what the first step of an optimizer imports, and our packages.
PRELOADED = ["torch._dynamo", "timesched", "optim"]
if find_spec("composer"):
    PRELOADED.append("timesched.integrations.composer")


def run_python(*command: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a Python script, which imports the packages of the checkout, in a new interpreter."""
    return _run([sys.executable, *map(str, command)], cwd, _with_checkout(os.environ), TIMEOUT)


def _run(command: list[str], cwd: Path, environment: dict[str, str], timeout: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def _with_checkout(environment: Mapping[str, str]) -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])
    return {**environment, "PYTHONPATH": paths}


def run_forked(
    *command: object, cwd: Path = ROOT, timeout: int = TIMEOUT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a Python script as `run_python` does, in a fork of a process that imported torch, and Composer, once.

    The imports take most of the time of a short script. That process does nothing else, so the script finds nothing of
    the tests. Only Linux forks safely: elsewhere a new interpreter starts.
    """
    words = [str(word) for word in command]
    environment = _with_checkout({**os.environ, **variables})
    if sys.platform != "linux":
        start = ["-m", "torch.distributed.run", *words[1:]] if words[0] == "torchrun" else words
        return _run([sys.executable, *start], cwd, environment, timeout)
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(PRELOADED)  # read when the first script starts
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = forks.Process(target=_run_script, args=(words, cwd, environment, out, err))
        process.start()
        process.join(timeout)
        shown = [path.read_text("utf-8") if path.exists() else "" for path in (out, err)]
        if process.exitcode is None:
            process.terminate()
            process.join()
            raise subprocess.TimeoutExpired(words, timeout, *shown)
        return subprocess.CompletedProcess(words, process.exitcode, *shown)


def _run_script(words: list[str], cwd: Path, environment: dict[str, str], out: Path, err: Path) -> None:
    """What Python does with a command: a file, `-m` and a module, or `-c` and a program; or what torchrun does."""
    for stream, path in ((sys.stdout, out), (sys.stderr, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream.fileno())
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    if words[0] == "torchrun":
        _run_ranks(words)
    else:
        _run_words(words, cwd)


def _run_words(words: list[str], cwd: Path) -> None:
    if words[0] in ("-m", "-c"):
        sys.argv, folder = words[1:], cwd
    else:
        sys.argv, folder = words, Path(words[0]).resolve().parent
    sys.path.insert(0, str(folder))
    if words[0] == "-m":
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        exec(words[1], {"__name__": "__main__"})
    else:
        runpy.run_path(words[0], run_name="__main__")


def _run_ranks(words: list[str]) -> None:
    """Do what `torchrun --standalone --nproc-per-node N script ...` does, with forks, which need not import torch."""
    program, standalone, option, world_size, *script = words
    assert (program, standalone, option) == ("torchrun", "--standalone", "--nproc-per-node"), words
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    ranks = torch.multiprocessing.start_processes
    ranks(_run_script_rank, (script, int(world_size), port), int(world_size), start_method="fork")


def _run_script_rank(rank: int, script: list[str], world_size: int, port: int) -> None:
    _set_rank(rank, world_size, MASTER_ADDR="localhost", MASTER_PORT=str(port))
    _run_words(script, Path.cwd())


def _set_rank(rank: int, world_size: int, **variables: str) -> None:
    """Set the environment of a rank on one machine, as torchrun does."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ.update(variables, **{name: str(number) for name, number in ranks.items()})


def python_output(*command: object, cwd: Path = ROOT) -> str:
    """The output of a Python script, which must succeed."""
    process = run_forked(*command, cwd=cwd)
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
    output = output_of_ranks([*torchrun, str(program), str(folder)], timeout, **variables)
    return read_report(folder, world_size), output


def start_ranks(main: Callable[[Path], None], world_size: int, folder: Path) -> None:
    """Run `main(folder)` on so many ranks. An error of one ends all.

    torchrun does the same, and each of its ranks imports torch again. A fork shares this process's imports.
    """
    method = "fork" if sys.platform == "linux" else "spawn"
    torch.multiprocessing.start_processes(_run_rank, (main, world_size, folder), world_size, start_method=method)


def _run_rank(rank: int, main: Callable[[Path], None], world_size: int, folder: Path) -> None:
    _set_rank(rank, world_size)
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


def output_of_ranks(command: list[str], timeout: int, **variables: str) -> str:
    """The output of a Python script that starts ranks. `timeout` is in seconds."""
    variables = {"OMP_NUM_THREADS": "1", **variables}
    if sys.platform == "linux":
        variables["GLOO_SOCKET_IFNAME"] = "lo"  # some machines cannot resolve their own name
    done: subprocess.CompletedProcess[str] | subprocess.TimeoutExpired
    try:
        done = run_forked(*command, timeout=timeout, **variables)
        ending = f"ended with {done.returncode}"
    except subprocess.TimeoutExpired as error:
        done, ending = error, f"was ended after {timeout} seconds"
    return f"The script {ending}:\n{done.stdout}\n{done.stderr}"[-6000:]
