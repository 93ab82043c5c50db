"""Several processes, for real, with gloo on the CPU. _distributed/program.py lists what they check."""

from pathlib import Path

from tests.optim._distributed.program import CHECKS, checks
from tests.torchrun import output_of_ranks, read_report

PROGRAM = Path(__file__).with_name("_distributed") / "program.py"
TIMEOUT = 900  # seconds; the launches take 60 to 120 on two cores


def test_on_several_processes(tmp_path):
    """One test, since all checks share the launches, and the second worker of pytest would wait for them."""
    output = output_of_ranks([str(PROGRAM), str(tmp_path)], TIMEOUT)
    failures = []
    for world_size in CHECKS:
        results = read_report(tmp_path, world_size)
        for name, _ in checks(world_size):
            error = results.get(name, f"{name} did not end. {output}")
            if error:
                failures.append(f"On {world_size} processes: {error}")
    assert not failures, "\n".join(failures[:5])
