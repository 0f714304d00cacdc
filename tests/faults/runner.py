"""Jobs that something is done to. Each must end by itself, within its time and with the words that are expected."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build" / "faults"


def _family() -> str:
    said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout
    return "openmpi" if "Open MPI" in said or "open-mpi" in said else "mpich"


FAMILY = _family()


class Ended(NamedTuple):
    """How a job ended."""

    status: int | None  # None: it did not
    out: str
    err: str
    seconds: float  # from the fault until the last rank had its exception, or until the job ended where there is none


def _kill_all_of(job: str) -> None:
    """Kill the processes of a job, wherever its launcher has put them."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"FAULT_JOB={job}".encode() in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            pass  # it is gone, or another user's


def _times(folder: Path, what: str) -> list[float]:
    return [float(file.read_text()) for file in folder.glob(what + "[0-9]*")]


def run(folder: Path, code: str, ranks: int, within: float, environment: dict[str, str], by_run: bool) -> Ended:
    """Run a program in a folder, for so many seconds at most, and leave nothing of it running."""
    (folder / "script.py").write_text(code)
    job, out, err = uuid.uuid4().hex, folder / "out", folder / "err"
    env = {
        **os.environ,
        "FAULT_JOB": job,
        "FAULT_MARK": str(folder / "mark"),
        "FAULT_HEARD": str(folder / "heard"),
        "PYTHONUNBUFFERED": "",
        # Compiling is what takes the time (tests/spmd/conftest.py).
        "JAX_COMPILATION_CACHE_DIR": str(RESULTS / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        **environment,
    }
    # The shell becomes mpirun, so that the ranks know its process.
    launch = f'FAULT_MPIRUN=$$ exec "{ROOT}/tools/mpirun" "$@"'
    command = ["sh", "-c", launch, "sh", "-n", str(ranks), sys.executable, "script.py"]
    if by_run:
        command = [sys.executable, "-m", "mpixla", "run", "-n", str(ranks), "--", "script.py"]
    began = time.time()
    with out.open("w") as to_out, err.open("w") as to_err:
        process = subprocess.Popen(
            command,
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=to_out,
            stderr=to_err,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(within)
        except subprocess.TimeoutExpired:
            status = None
        ended = max(_times(folder, "heard"), default=time.time())
        _kill_all_of(job)
        process.wait()
    began = min(_times(folder, "mark"), default=began)
    return Ended(status, out.read_text(errors="replace"), err.read_text(errors="replace"), ended - began)
