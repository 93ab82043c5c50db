"""The callback where the model is in shards, on two processes: one launch, of callback_sharded.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.integration.callback_sharded import Checks

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("callback_sharded.py")
TIMEOUT = 300  # seconds; it takes 20 on two cores


def launch(folder: Path) -> str:
    """What torchrun wrote."""
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(PROGRAM), str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "FSDP_VERSION": "2", "NODE_RANK": "0", "PYTHONPATH": str(ROOT)}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"  # some machines cannot resolve their own name
    with (folder / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            process.wait(TIMEOUT)
        finally:
            if process.poll() is None:
                process.terminate()  # torchrun ends its processes then
                process.wait(60)
        output.seek(0)
        return output.read()


def test_sharded_checkpoints(tmp_path: Path) -> None:
    """They go on to the bit; other schedules are refused as elsewhere; what cannot be says what to do."""
    output = launch(tmp_path)
    there = tmp_path / "results.json"
    results = json.loads(there.read_text()) if there.exists() else {}
    assert list(results) == list(Checks(tmp_path).all()), output[-6000:]
    assert not any(results.values()), "\n".join(f"{name}: {error}" for name, error in results.items() if error)
