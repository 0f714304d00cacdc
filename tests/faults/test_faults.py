"""Every row of table.py. What came of it is kept for docs/faults.md (report.py)."""

import json
import re

import pytest
from runner import FAMILY, RESULTS, run
from table import BAD, FAULTS, PREAMBLE


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_fault(fault, tmp_path):
    code = fault.before + PREAMBLE + fault.code
    done = run(tmp_path, code, fault.ranks, fault.within, dict(fault.setting), fault.by_run)
    said = f"\n-- status {done.status}\n-- stdout\n{done.out}\n-- stderr\n{done.err}"
    saw, *also = (text.replace("{victim}", str(fault.ranks - 1)) for text in (fault.saw, *fault.also))
    printed = done.err + done.out  # MPICH's mpirun says there how a rank has ended
    assert done.status is not None, f"the job had not ended after {fault.within} s{said}"
    assert done.status != 0 if fault.status == BAD else done.status == fault.status, said
    for pattern in (saw, *also):
        assert re.search(pattern, printed, re.IGNORECASE), f"{pattern!r} is not there{said}"
    for pattern in fault.never:
        assert not re.search(pattern, printed), f"{pattern!r} is there{said}"
    assert re.search(fault.prints, done.out), said
    record = {"status": done.status, "seconds": round(done.seconds, 1), "printed": printed}
    folder = RESULTS / FAMILY
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{fault.id}.json").write_text(json.dumps(record) + "\n")
