#!/usr/bin/env python3
"""Print the path of a ready-made Python: ``python3 tools/env.py {newest,docs,composer,trainers,xla}``.

The tests run in several environments, because the newest torch, Composer and torch_xla exclude each other. The first
call installs requirements/NAME.txt into the user's cache, which all checkouts share. Later calls only find it there.
Standard output has the path alone; everything else goes to standard error. Needs a Unix, for its file locks.
"""

import argparse
import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

COST = {  # the cost of the first call, printed before it starts
    "newest": "the newest torch and the linters: about 6 GB and two to five minutes (with a CPU torch 1 GB)",
    "docs": "Sphinx, its theme and torch: 1 GB and a minute (with a CUDA torch 6 GB and longer)",
    "composer": "Composer and its torch: about 6 GB and two to five minutes",
    "trainers": "transformers, lightning, torchtitan: 2 GB and two to four minutes (with a CUDA torch 6 GB and longer)",
    "xla": "torch_xla and its torch: about 6 GB and two to five minutes",
}
ALL_DOWNLOADED = "Installing collected packages: "  # how pip begins its line with all packages, after the downloads
MARKER = ".complete"  # written last: an environment without it was interrupted
KEEP_DAYS = 14
OTHER_PYTHON = "With make, another Python is chosen like this: make test PYTHON=/usr/bin/python3.12"


def say(text: str) -> None:
    print("tools/env.py: " + text, file=sys.stderr, flush=True)


def cache_directory() -> Path:
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("TIMESCHED_CACHE") or shared + "/timesched").expanduser().absolute()


def requirement_lines(requirements: Path) -> "list[str]":
    """The requirements without comments; without pins, if the variable UNPINNED is set."""
    lines = [line.partition("#")[0].strip() for line in requirements.read_text(encoding="utf-8").splitlines()]
    if os.environ.get("UNPINNED"):
        lines = [re.sub(r"==[^;\s]+", "", line) for line in lines]
    return [line for line in lines if line]


def fingerprint(requirements: Path) -> str:
    """A short hash of everything that the installed files depend on."""
    host = platform.uname()
    facts = [platform.python_implementation(), platform.python_version(), host.system, host.machine]
    return hashlib.sha256("\0".join(facts + requirement_lines(requirements)).encode()).hexdigest()[:12]


def take_lock(path: Path) -> IO[str]:
    """Take the lock for all environments of a name. It is released when the last process that holds it ends."""
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another process is at work on this environment; waiting for it")
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def read_lines(output: IO[bytes]) -> "list[str]":
    text = os.pread(output.fileno(), os.fstat(output.fileno()).st_size, 0)  # the child shares the position of the file
    return [line.strip() for line in text.decode(errors="replace").splitlines() if line.strip()]


def describe_progress(lines: "list[str]", env: Path) -> str:
    """How far pip is, by its lines so far: the package that it downloads, then how many it has installed."""
    for line in lines:
        if line.startswith(ALL_DOWNLOADED):
            packages = line.removeprefix(ALL_DOWNLOADED).split(", ")
            installed = len(list(env.glob("lib/python*/site-packages/*.dist-info")))
            return f"all is downloaded, {min(installed, len(packages))} of {len(packages)} packages are installed"
    count = sum(line.startswith(("Collecting ", "Processing ")) for line in lines)
    files = [line for line in lines if line.startswith("Downloading ")]
    return f"package {count}: {files[-1]}" if files else "starting"


def run(step: str, command: "list[str]", env: Path, lock: IO[str], advice: str) -> None:
    """Run a command, and print how long it has run and how far it is. If it fails, print its output."""
    start, on_terminal = time.monotonic(), sys.stderr.isatty()
    pause = next_line = 0.2 if on_terminal else 10.0  # seconds; on a terminal, one line is overwritten
    width = (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1 if on_terminal else 100
    with tempfile.TemporaryFile() as output:
        # The child inherits the lock. If this script is killed and pip continues, no other call deletes its files.
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, pass_fds=[lock.fileno()]
        ) as child:
            try:
                while child.poll() is None:
                    seconds = time.monotonic() - start
                    if seconds >= next_line:
                        next_line = seconds + pause
                        text = f"tools/env.py: {step}, {seconds:.0f} s: {describe_progress(read_lines(output), env)}"
                        line = f"\r\033[K{text[:width]}" if on_terminal else f"{text[:width]}\n"
                        print(line, end="", file=sys.stderr, flush=True)
                    time.sleep(0.1)
            finally:
                child.kill()
                if on_terminal:
                    print("\r\033[K", end="", file=sys.stderr, flush=True)
        if child.returncode:
            print(*read_lines(output)[-30:], sep="\n", file=sys.stderr)
            sys.exit(f"tools/env.py: this command failed ({child.returncode}): {shlex.join(command)}\n{advice}")


def delete(env: Path) -> None:
    (env / MARKER).unlink(missing_ok=True)  # first, so that half a deletion never looks complete
    shutil.rmtree(env, ignore_errors=True)


def installer(python: str) -> "list[str]":
    """The command that installs packages: uv if it is there and finds the files that pip finds, else pip.

    uv reads neither pip's configuration nor its variables, such as PIP_EXTRA_INDEX_URL. `pip config list` shows both.
    """
    # -I: packages on the caller's PYTHONPATH must not count as installed.
    pip = [python, "-I", "-m", "pip"]
    configuration = subprocess.run([*pip, "config", "list"], stdout=subprocess.PIPE, text=True, check=False).stdout
    if shutil.which("uv") and not configuration.strip():
        return ["uv", "pip", "install", "--python", python]
    return [*pip, "install", "--disable-pip-version-check", "--progress-bar", "off"]


def build(env: Path, name: str, requirements: Path, lock: IO[str]) -> None:
    if not all(importlib.util.find_spec(module) for module in ("venv", "ensurepip")):
        sys.exit(f"tools/env.py: {sys.executable} has no venv (Debian: python3-venv). {OTHER_PYTHON}")
    contents, cost = COST[name].split(": ")
    say(f"installing {contents}")
    say(f"this takes {cost}")
    say(f"once, into {env}")
    start = time.monotonic()
    delete(env)  # the files that an interrupted call left
    run("step 1 of 2, venv", [sys.executable, "-m", "venv", str(env)], env, lock, f"Check disk space. {OTHER_PYTHON}")
    advice = f"Check network and disk space, and whether these pins suit your Python. {OTHER_PYTHON}"
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(requirement_lines(requirements)))
        file.flush()
        run("step 2 of 2", [*installer(str(env / "bin" / "python")), "-r", file.name], env, lock, advice)
    (env / MARKER).touch()
    say(f"installed in {time.monotonic() - start:.0f} s")


def drop_unused(directory: Path, name: str, current: Path) -> None:
    """Delete environments with other pins or Pythons that were not used for two weeks."""
    for env in directory.glob(name + "-*"):
        last_use = max(path.stat().st_mtime for path in (env, env / MARKER) if path.exists())
        if env != current and time.time() - last_use > KEEP_DAYS * 86400:
            delete(env)


def main() -> None:
    if sys.version_info < (3, 10):  # noqa: UP036 (this line is for users of an older Python)
        sys.exit(f"tools/env.py: needs Python 3.10 or newer, not {platform.python_version()}. {OTHER_PYTHON}")
    parser = argparse.ArgumentParser(description="Print the path of a Python with requirements/NAME.txt.")
    parser.add_argument("name", choices=sorted(COST))
    name = parser.parse_args().name
    requirements = Path(__file__).resolve().parents[1] / "requirements" / (name + ".txt")
    directory = cache_directory() / "envs"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = take_lock(directory / (name + ".lock"))
    except OSError as error:
        sys.exit(f"tools/env.py: {error}. Set TIMESCHED_CACHE to a directory that can be written.")
    env = directory / f"{name}-{fingerprint(requirements)}"
    python = env / "bin" / "python"
    if not ((env / MARKER).exists() and python.exists()):  # its python dangles once the base one is gone
        build(env, name, requirements, lock)
    os.utime(env / MARKER)  # the time of last use, for drop_unused
    drop_unused(directory, name, env)
    print(python)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\ntools/env.py: interrupted; the next call starts afresh")
