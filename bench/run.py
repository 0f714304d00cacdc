"""The benchmarks: everything side by side in one run. `make bench` starts it.

All contenders are up at once, and sleep but for the one that is asked. In each round every measurement is made by one
contender after the other, so that what disturbs the machine disturbs them alike.
"""

import argparse
import json
import os
import platform
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from contenders import Job, NoAnswerError
from report import NAMES, Figures, document, draw, figure_of, slowest
from rows import CLIENTS, FULL, MIB, OPS, QUICK, WATCHED, Effort, Measurement, Row, rows, rows_of_clients

HERE = Path(__file__).parent
ROOT = HERE.parent
RANKS = 2
TIMEOUT = 600.0  # seconds, for one answer


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True, help="of the MPI, which the files are named after")
    parser.add_argument("--quick", action="store_true", help="in two minutes, to see that it works")
    parser.add_argument("--raw", type=Path, required=True, help="the raw C peer")
    parser.add_argument("--nothing", type=Path, required=True, help="the library with the XLA call that does nothing")
    parser.add_argument("--mpi4jax-python", type=Path, help="the Python that has mpi4jax")
    parser.add_argument("--mpi4jax-why-not", type=Path, help="a file that says why there is none")
    parser.add_argument("--mpi4jax-source", type=Path, help="mpi4jax's source distribution")
    parser.add_argument("--clients", type=Path, help="measure the programs in this folder, and nothing else")
    parser.add_argument("--out", type=Path, required=True, help="folder of the tables and plots")
    parser.add_argument("--rounds", type=int, help="how often everything is measured, after a first time")
    parser.add_argument(
        "--only", metavar="SECTION", action="append", help="rows of the sections whose names begin so; may be repeated"
    )
    return parser.parse_args()


def example_of(sdist: Path | None, folder: Path) -> Path | None:
    """Return mpi4jax's shallow-water example out of its source distribution, if both are there."""
    if sdist is None or not sdist.exists():
        return None
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member) if member.name.endswith("/examples/shallow_water.py") else None
            if file:
                path = folder / "mpi4jax_shallow_water.py"
                path.write_bytes(file.read())
                return path
    return None


def start(args: argparse.Namespace, folder: Path) -> dict[str, Job | str]:
    """Start all contenders. A contender that cannot be started is a sentence that says why."""
    example = example_of(args.mpi4jax_source, folder)
    tail = [str(example)] if example else []
    launch = [str(ROOT / "tools/mpirun"), "-n"]
    pinned = str(HERE / "pinned")
    worker = [str(HERE / "jax_worker.py"), "{socket}"]
    me = sys.executable

    def job(name: str, *commands: Sequence[str], ranks: int = RANKS, path: Path | None = None, **variables: str) -> Job:
        # Ranks of an environment find its mpirun first.
        environment = {"PATH": f"{path or Path(me).parent}:{os.environ['PATH']}", **variables}
        if path:
            environment["PYTHONPATH"] = ""
        print(f"starting {name}", flush=True)
        return Job(name, commands, ranks, environment, folder / f"{name.replace(' ', '-')}.log")

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    sharded = str(HERE / "sharded_worker.py")
    gloo = [
        ["env", f"PMI_RANK={rank}", pinned, me, sharded, "{socket}", port, str(rank), str(RANKS)]
        for rank in range(RANKS)
    ]
    two, four = [*launch, str(RANKS), pinned], [*launch, "4", pinned]
    one = [*launch, "1", pinned, me, *worker, "mpixla", *tail]
    watched = {name: {k: v.format(folder=folder / name) for k, v in set_.items()} for name, set_ in WATCHED.items()}
    raw, nothing = str(args.raw.resolve()), str(args.nothing.resolve())
    jobs: dict[str, Job | str] = {
        "raw": job("raw", [*two, raw, "{socket}"]),
        "raw multiple": job("raw multiple", [*two, raw, "{socket}", "multiple"]),
        "mpixla": job("mpixla", [*two, me, *worker, "mpixla", *tail]),
        "mpixla on 1 rank": job("mpixla on 1 rank", one, ranks=1, BENCH_NOTHING=nothing),
        "serialized": job("serialized", [*two, me, *worker, "mpixla", *tail], MPI4PY_RC_THREAD_LEVEL="serialized"),
        **{name: job(name, [*two, me, *worker, "mpixla"], **settings) for name, settings in watched.items()},
        "4 ranks": job("4 ranks", [*four, me, *worker, "mpixla"], ranks=4),
        "4 ranks through MPI": job("4 ranks through MPI", [*four, me, *worker, "mpixla"], ranks=4, MPIXLA_LOCAL="0"),
        "mpi4py": job("mpi4py", [*two, me, str(HERE / "mpi4py_worker.py"), "{socket}"]),
        "gloo": job("gloo", *gloo),
        "distributed": job("distributed", [*two, me, "-m", "mpixla.distributed", sharded, "{socket}"]),
    }
    if args.mpi4jax_python and args.mpi4jax_python.exists():
        python = args.mpi4jax_python.absolute()
        jobs["mpi4jax"] = job("mpi4jax", [*two, str(python), *worker, "mpi4jax", *tail], path=python.parent)
    else:
        why = args.mpi4jax_why_not
        reason = why.read_text().strip() if why and why.exists() else "no environment was given"
        jobs["mpi4jax"] = f"mpi4jax could not be installed: {reason}"
    return jobs


def start_clients(args: argparse.Namespace, folder: Path) -> dict[str, Job | str]:
    """Start the contenders that run programs written for mpi4jax, on mpixla and on mpi4jax."""
    example = example_of(args.mpi4jax_source, folder)
    tail = [str(example)] if example else []
    launch = [str(ROOT / "tools/mpirun"), "-n", str(RANKS), str(HERE / "pinned")]
    pythons = {"mpixla": Path(sys.executable), "mpi4jax": args.mpi4jax_python.absolute()}

    def job(name: str, library: str, worker: str, *words: str, **variables: str) -> Job:
        python = pythons[library]
        environment = {"PATH": f"{python.parent}:{os.environ['PATH']}", "PYTHONPATH": str(args.clients), **variables}
        print(f"starting {name}", flush=True)
        command = [*launch, str(python), str(HERE / worker), "{socket}", library, *words]
        return Job(name, [command], RANKS, environment, folder / f"{name.replace(' ', '-')}.log")

    return {
        "mpixla": job("mpixla", "mpixla", "jax_worker.py", *tail),
        "mpi4jax": job("mpi4jax", "mpi4jax", "jax_worker.py", *tail),
        "through MPI": job("through MPI", "mpixla", "jax_worker.py", *tail, MPIXLA_LOCAL="0"),
        "without windows": job("without windows", "mpixla", "jax_worker.py", *tail, MPIXLA_WINDOWS="0"),
        "Veros on mpixla": job("Veros on mpixla", "mpixla", "veros_worker.py"),
        "Veros on mpi4jax": job("Veros on mpi4jax", "mpi4jax", "veros_worker.py"),
    }


def import_time(statement: str) -> list[float]:
    """Return the median over some fresh processes."""
    return [statistics.median(one_import(statement) for _ in range(5))]


def one_import(statement: str) -> float:
    code = f"import time; begin = time.perf_counter(); {statement}; print(time.perf_counter() - begin)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode != 0:
        raise NoAnswerError((done.stderr.strip().splitlines() or ["it failed"])[-1])
    return float(done.stdout.split()[-1])


def measure(jobs: dict[str, Job | str], measurement: Measurement) -> list[float]:
    """Return the figures of one round."""
    if measurement.contender == "import":
        return import_time(measurement.line)
    job = jobs[measurement.contender]
    if isinstance(job, str):
        raise NoAnswerError(job)
    return figure_of(measurement.line, slowest(job.ask(measurement.line, TIMEOUT)))


def measure_all(jobs: dict[str, Job | str], wanted: Sequence[Row], effort: Effort) -> dict[Measurement, Figures]:
    """Measure in rounds; measurements that are compared come next to each other, in an order that changes."""
    groups = list(dict.fromkeys(tuple(row.measurements()) for row in wanted))
    kept: dict[Measurement, list[list[float]]] = {m: [] for group in groups for m in group}
    failed: dict[Measurement, str] = {}
    for round_ in range(effort.rounds + 1):
        begin = time.monotonic()
        done: set[Measurement] = set()
        for group in groups:
            for measurement in random.Random(round_).sample(group, len(group)):
                if measurement in done or measurement in failed or (round_ > 1 and only_once(measurement)):
                    continue
                done.add(measurement)
                try:
                    figures = measure(jobs, measurement)
                except NoAnswerError as error:
                    failed[measurement] = f"{measurement.contender}: {error}"
                    print(f"{measurement.contender}, {measurement.line}: {error}", flush=True)
                else:
                    if round_ > 0:  # in round 0 programs are compiled and memory is touched
                        kept[measurement].append(figures)
        print(f"round {round_} of {effort.rounds}: {time.monotonic() - begin:.0f} s", flush=True)
    return {m: failed.get(m) or (kept[m] * effort.rounds if only_once(m) else kept[m]) for m in kept}


def only_once(measurement: Measurement) -> bool:
    """Measure quantities that take long and do not vary."""
    return measurement.line.startswith("grow")


def remarks_on_copies(job: Job | str) -> list[str]:
    if isinstance(job, str):
        return []
    remarks = []
    for op in OPS:
        try:
            ranks = job.ask(f"copies {op} {MIB}", TIMEOUT)
        except NoAnswerError as error:
            remarks.append(f"copies around {op}: {error}")
            continue
        each = "; ".join(f"rank {i}: {chain} in a chain, {loop} in a loop" for i, [[chain, loop]] in enumerate(ranks))
        remarks.append(f"copies of the operand that XLA adds to each {op}: {each}")
    return remarks


def remark_on_answers(jobs: dict[str, Job | str], effort: Effort, folder: Path) -> list[str]:
    """Return whether mpi4jax's example and the same with halo_exchange compute the same."""
    (ny, nx), (chunk, _) = next(iter(effort.models.items()))
    files = {}
    try:
        for contender, name in (("mpi4jax", "peer"), ("mpixla", "peer-halo"), ("mpixla", "peer-alone")):
            job = jobs[contender]
            if isinstance(job, str):
                raise NoAnswerError(job)
            files[name] = folder / name
            job.ask(f"save {name} {ny} {nx} {chunk} 1 {files[name]}", TIMEOUT)
    except NoAnswerError as error:
        return [f"the answers of the models were not compared: {error}"]
    fields = {name: [np.load(f"{file}.{rank}.npy") for rank in range(RANKS)] for name, file in files.items()}
    apart = {
        name: max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(fields["peer"], given, strict=True))
        for name, given in fields.items()
    }
    same = "the same answer" if apart["peer-halo"] < 1e-5 else "ANOTHER ANSWER"
    return [
        f"after {chunk} steps of {nx} x {ny} mpi4jax's example with halo_exchange has {same} as with mpi4jax: "
        f"it differs by {apart['peer-halo']:.1e} of the largest value; without exchanges by {apart['peer-alone']:.1e}"
    ]


def about(job: Job | str) -> dict[str, str]:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = models[0] if models else cpu
    facts = {
        "processor": f"{cpu}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.machine()}",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "ranks": str(RANKS),
    }
    versions: Any = {} if isinstance(job, str) else job.ask("about", TIMEOUT)[0]
    return facts | versions


def main() -> None:
    args = parse()
    effort = QUICK if args.quick else FULL
    effort = replace(effort, rounds=args.rounds or effort.rounds)
    all_rows = rows_of_clients(effort) if args.clients else rows(effort)
    wanted = [row for row in all_rows if row.section.startswith(tuple(args.only or [""]))]
    args.out.mkdir(parents=True, exist_ok=True)
    logs = ROOT / "build" / "bench" / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        jobs = (start_clients if args.clients else start)(args, logs)
        try:
            facts = about(jobs["mpixla"])
            figures = measure_all(jobs, wanted, effort)
            remarks = [] if args.clients else remarks_on_copies(jobs["mpixla"])
            remarks = [*remark_on_answers(jobs, effort, Path(folder)), *remarks]
        finally:
            for job in jobs.values():
                if isinstance(job, Job):
                    job.close()
    mpi = args.name.partition("-")[0]
    noise = " (quick: noise, not results)" if args.quick else ""
    title = f"{CLIENTS if args.clients else 'Benchmarks'} under {NAMES.get(mpi, mpi)}{noise}"
    text = document(title, facts, wanted, figures, remarks)
    files = [args.out / f"{args.name}.md", args.out / f"{args.name}.json"]
    files[0].write_text(text)
    data = [{"contender": m.contender, "line": m.line, "figures": f} for m, f in figures.items()]
    files[1].write_text(json.dumps(data, indent=0) + "\n")
    if not args.clients:
        files += draw(wanted, figures, args.out, args.name)
    print(text)
    print("wrote " + ", ".join(map(str, files)))


if __name__ == "__main__":
    main()
