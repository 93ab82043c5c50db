"""The callback where the model is in shards, on two processes: one launch, of callback_sharded.py."""

from __future__ import annotations

from pathlib import Path

from tests.integration.callback_sharded import Checks
from tests.torchrun import launch

PROGRAM = Path(__file__).with_name("callback_sharded.py")
TIMEOUT = 300  # seconds; it takes 20 on two cores


def test_sharded_checkpoints(tmp_path: Path) -> None:
    """They go on to the bit; other schedules are refused as elsewhere; what cannot be says what to do."""
    results, output = launch(PROGRAM, 2, tmp_path, TIMEOUT, FSDP_VERSION="2", NODE_RANK="0")
    assert list(results) == list(Checks(tmp_path).all()), output
    assert not any(results.values()), "\n".join(f"{name}: {error}" for name, error in results.items() if error)
