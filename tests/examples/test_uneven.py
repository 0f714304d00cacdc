"""examples/uneven.py, and what docs/trace.md says of its timeline: the others wait for rank 0."""

from pathlib import Path

import pytest

from mpixla.trace.match import match
from mpixla.trace.read import read
from mpixla.trace.tables import who_waited

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.mark.long
def test_the_others_wait_for_rank_0(job, tmp_path):
    options = ("--particles", "400", "--more", "6", "--steps", "10")
    done = job(3, RUN, EXAMPLES / "uneven.py", *options, MPIXLA_TRACE="traces")
    assert done.stdout.startswith("10 steps, energy ")
    found = read(tmp_path / "traces")
    match(found)
    assert found.notes == []
    # But not in the first step, for which each rank compiles.
    for timeline in found.timelines.values():
        sums = [call for call in timeline.calls if call.name == "allreduce"]
        timeline.calls = sums[1:]
    waits = who_waited(found)
    for rank in (1, 2):
        for late in (1, 2):
            if (rank, late) in waits:
                assert waits[rank, 0].waiting > waits[rank, late].waiting
    assert waits[1, 0].waiting + waits[2, 0].waiting > 0
