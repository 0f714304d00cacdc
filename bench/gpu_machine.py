"""The common part of check-gpu and bench-gpu: packages, the machine, and the places of results.

As a program it prints what there is to say about the machine: python bench/gpu_machine.py, under mpirun.
"""

import argparse
import contextlib
import ctypes
import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "gpu"
MPIRUN = str(ROOT / "tools" / "mpirun")
FAKE = "a fake GPU: figures have no meaning"


def parser(description: str, seconds: float) -> argparse.ArgumentParser:
    """Return the command line that both have."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--out", type=Path, required=True, help="folder of the results")
    made.add_argument("--wheels", type=Path, help="folder of wheels to install first, beside what this Python has")
    made.add_argument("--fake", action="store_true", help="run on the fake GPU, to see that all works")
    made.add_argument("--quick", action="store_true", help="a small part, to see that it works")
    made.add_argument(
        "--seconds", type=float, default=seconds, help="begin nothing after this time (default: %(default)g)"
    )
    return made


def environment(fake: bool, wheels: Path | None, *, mpi4jax: bool = False) -> dict[str, str]:
    """Return the variables of all jobs, which use the GPU, or the fake one.

    Args:
        fake: whether it is the fake one.
        wheels: a folder of wheels that are installed first.
        mpi4jax: whether to build it, if its source distribution is among them.
    """
    variables = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "PYTHONUNBUFFERED": "",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # ranks share a GPU
        "JAX_PLATFORMS": "cpu" if fake else os.environ.get("JAX_PLATFORMS") or "cuda,cpu",
    }
    if fake:
        variables["MPIXLA_FAKE_DEVICE"] = variables["MPIXLA_FAKE_DEVICE_SHARED"] = "1"
        variables["PYTHONPATH"] = f"{ROOT / 'tests/seam'}:{variables['PYTHONPATH']}"
    if wheels:
        variables |= _install(wheels, variables)
        if mpi4jax:
            _build_mpi4jax(wheels, variables)
    return variables


PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-compile")
SITE = BUILD / "site"


def _install(wheels: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Install wheels into a folder of their own, and return variables by which programs find them."""
    shutil.rmtree(SITE, ignore_errors=True)
    files = map(str, sorted(wheels.glob("*.whl")))
    subprocess.run([sys.executable, *PIP, "--ignore-installed", "--prefix", str(SITE), *files], check=True, timeout=200)
    packages = [str(folder) for kind in ("site", "dist") for folder in sorted(SITE.glob(f"**/{kind}-packages"))]
    found = {
        "PATH": f"{SITE / 'bin'}:{variables['PATH']}",
        "PYTHONPATH": ":".join([*packages, variables["PYTHONPATH"]]),
    }
    mpi = sorted(SITE.glob("lib/libmpi.so.*"))
    return found | ({"MPI4PY_LIBMPI": str(mpi[0])} if mpi else {})


def _build_mpi4jax(wheels: Path, variables: Mapping[str, str]) -> None:
    """Build it for this GPU and MPI, if that is possible: it has no wheels."""
    mpicc = shutil.which("mpicc", path=variables["PATH"]) or "mpicc"
    for source in wheels.glob("mpi4jax-*.tar.gz"):
        command = [sys.executable, *PIP, "--no-build-isolation", "--prefix", str(SITE), str(source)]
        run(command, {**variables, "MPI4JAX_BUILD_MPICC": mpicc}, 120, BUILD / "logs" / "mpi4jax.log")


class Ended(NamedTuple):
    """A job that has ended: its exit status, None where it was killed because it took too long, and what it printed."""

    status: int | None
    text: str
    seconds: float


def run(command: Sequence[str], variables: Mapping[str, str], limit: float, log: Path) -> Ended:
    """Run a job until it ends, at most for so many seconds."""
    begin = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            for end, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, None)):  # mpirun ends its ranks at the first
                with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
                    os.killpg(process.pid, end)
                    process.wait(patience)
                    break
    text = log.read_text(errors="replace").replace(f"{ROOT}/", "")
    return Ended(status, text, time.monotonic() - begin)


def job(program: Sequence[str], *variables: Mapping[str, str]) -> list[str]:
    """Return the command that runs a program on ranks, each with variables of its own."""
    parts: list[str] = []
    for of_rank in variables:
        each = ["-n", "1", "env", *(f"{name}={value}" for name, value in of_rank.items()), *program]
        parts += [":", *each] if parts else each
    return [MPIRUN, *parts]


def write(folder: Path, name: str, data: Any, page: str) -> None:
    """Write results as JSON and as a page; whatever happens next, a whole file is there."""
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, text in ((".json", json.dumps(data, indent=1) + "\n"), (".md", page)):
        new = folder / f".{name}{suffix}"
        new.write_text(text)
        new.replace(folder / f"{name}{suffix}")


def about(variables: Mapping[str, str], fake: bool, log: Path) -> dict[str, str]:
    """Describe the machine and its software, as far as can be found out."""
    facts = {"GPU": FAKE if fake else _ask_driver()}
    done = run(job([sys.executable, str(Path(__file__))], {}), variables, 120, log)
    try:
        return facts | json.loads(done.text.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return facts | {"Python": f"{sys.version.split()[0]}; no more is known, since a job of one rank failed"}


def _ask_driver() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        text = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as e:
        return f"unknown: {type(e).__name__} of nvidia-smi"
    return "; ".join(" ".join(line.split()) for line in text.splitlines())


def _facts() -> dict[str, str]:
    import jax
    from mpi4py import MPI

    import mpixla
    from mpixla.mpi import gpu

    cuda = ctypes.c_int()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(cuda))
    device = jax.devices()[0]
    try:
        mpixla.barrier()
        transport = re.sub(r" \(/.*?\)", "", gpu.transport_of(None))
    except Exception as e:
        transport = f"none: {e}"
    names = ("mpixla", "jax", "jaxlib", "jax-cuda13-plugin", "nvidia-nccl-cu13", "mpi4py", "numpy", "mpi4jax")
    versions = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "JAX's device": f"{device.device_kind} ({device.platform})",
        "CUDA of the driver": f"{cuda.value // 1000}.{cuda.value // 10 % 100}" if cuda.value else "none",
        "transport on one rank": transport,
        "MPI": " ".join(MPI.Get_library_version().splitlines()[0].split()),
        "Python": platform.python_version(),
        "cores": str(os.cpu_count()),
        **versions,
    }


if __name__ == "__main__":
    print(json.dumps(_facts()), flush=True)
