"""make bench-gpu: mpixla with arrays in a GPU's memory, beside raw copies, MPI on the CPU and mpi4jax.

As in bench/run.py all contenders are up at once, and measured in turn, in rounds. Where there is one GPU, both ranks
share it. Results are written as they come, so that those of a run that is cut off are there.
"""

import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gpu_machine as machine
from contenders import Job, NoAnswerError
from report import Figures, Result, figure_of, number, result_of, slowest, table
from rows import KIB, MIB, Measurement, Row, size_name

HERE = Path(__file__).parent
TIMEOUT = 40.0  # seconds, for one answer
PATIENCE = 130.0  # seconds that a contender may take to start
STARTS = 2  # of a contender: one that is late or dies in one measurement may make the others
RESERVE = 15.0  # seconds in which all contenders end


@dataclass(frozen=True)
class Effort:
    """How much is done.

    Attributes:
        rounds: how often everything is measured, after a first time.
        times: repetitions in a round.
        small: sizes of messages whose latency is measured.
        large: sizes whose bandwidth is.
        pieces: sizes of pieces.
        lengths: of the longer and the shorter chain of small messages, and of large ones.
        calls: calls in a row.
        models: sizes of the shallow-water model, with time steps in a chunk, and chunks.
    """

    rounds: int
    times: int
    small: tuple[int, ...]
    large: tuple[int, ...]
    pieces: tuple[int, ...]
    lengths: tuple[tuple[int, int], tuple[int, int]]
    calls: int
    models: dict[tuple[int, int], tuple[int, int]]


FULL = Effort(
    7,
    5,
    (4, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB),
    (MIB, 16 * MIB, 128 * MIB),
    (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB),
    ((36, 4), (4, 1)),
    500,
    {(180, 360): (100, 10), (1800, 3600): (10, 3)},
)
QUICK = Effort(1, 1, (4,), (MIB,), (256 * KIB,), ((6, 2), (2, 1)), 10, {(24, 48): (5, 1)})

SPLIT = ("allreduce", "bcast")  # calls that are made in pieces
COMMON = ("allreduce", "sendrecv", "halo_exchange")
WHOLE = 1 << 40  # bytes of a piece: no array has more
MOST = 512  # pieces of an array


def chain(contender: str, op: str, size: int, effort: Effort) -> Measurement:
    long, short = effort.lengths[size >= MIB]
    return Measurement(contender, f"chain {op} f32 {size} {long} {short} {effort.times}")


def rows(effort: Effort) -> list[Row]:
    """Return all rows, table by table, the most important rows first."""
    return [
        *_pieces(effort),
        *_latency(effort),
        *_models(effort),
        *_transports(effort),
        *_one_rank(effort),
        *_calls(effort),
    ]


def _pieces(effort: Effort) -> Iterator[Row]:
    section = "Large arrays through the host, by size of the pieces"
    for op in SPLIT:
        for size in effort.large:
            for piece in (*(p for p in effort.pieces if p < size <= MOST * p), WHOLE):
                what = f"{op}, {size_name(size)}, " + (f"pieces of {size_name(piece)}" if piece < WHOLE else "whole")
                against = chain("raw", "out_and_in", size, effort)
                yield Row(section, what, "raw copies out and in", chain("host", f"{op}@{piece}", size, effort), against)


def _latency(effort: Effort) -> Iterator[Row]:
    for op in COMMON:
        for size in effort.small:
            what = f"{op}, {size_name(size)}"
            host, nccl, cpu, mpi4jax = (chain(c, op, size, effort) for c in ("host", "nccl", "cpu", "mpi4jax"))
            raw = chain("raw", "out_and_in", size, effort)
            peer = mpi4jax if op != "halo_exchange" else None
            yield Row("Latency", what, "raw copies out and in", host, raw, peer=peer)
            yield Row("Latency", what, "the same on the CPU", host, cpu, kind="difference")
            if op != "sendrecv":  # which NCCL does not make
                yield Row("Latency", f"{what}, nccl", "host", nccl, host)


def _transports(effort: Effort) -> Iterator[Row]:
    section = "Large arrays by transport"
    for op in COMMON:
        for size in effort.large if op != "halo_exchange" else effort.large[:2]:
            what = f"{op}, {size_name(size)}"
            host, nccl, cpu, mpi4jax = (chain(c, op, size, effort) for c in ("host", "nccl", "cpu", "mpi4jax"))
            raw = chain("raw", "out_and_in", size, effort)
            peer = mpi4jax if op != "halo_exchange" else None
            yield Row(section, what, "raw copies out and in", host, raw, peer=peer)
            yield Row(section, what, "the same on the CPU", host, cpu)
            if op != "sendrecv":
                yield Row(section, f"{what}, nccl", "host", nccl, host)
    for size in effort.large:
        raw = (chain("raw", op, size, effort) for op in ("out_beside_in", "out_and_in"))
        yield Row(section, f"raw copies out and in at once, {size_name(size)}", "one after the other", *raw)


def _one_rank(effort: Effort) -> Iterator[Row]:
    section = "One rank, which shares its GPU with nobody"
    for size in dict.fromkeys((effort.small[0], effort.small[-1], *effort.large)):
        what = f"allreduce, {size_name(size)}"
        host, nccl = (chain(f"{c}, one rank", "allreduce", size, effort) for c in ("host", "nccl"))
        raw = chain("raw, one rank", "out_and_in", size, effort)
        yield Row(section, what, "raw copies out and in", host, raw)
        yield Row(section, f"{what}, nccl", "host", nccl, host)


def _calls(effort: Effort) -> Iterator[Row]:
    def ask(contender: str, name: str) -> Measurement:
        return Measurement(contender, f"call {name} {effort.calls} {effort.times}")

    for contender in ("host", "nccl"):
        names = {"sealed": "mpixla.jit", "jit": "jax.jit", "eager_allreduce": "eager"}
        for name, what in names.items():
            peer = ask("mpi4jax", name) if contender == "host" and name != "sealed" else None
            text = f"{what}, one 4-byte allreduce, {contender}"
            yield Row(
                "Calls from Python", text, "jax.jit(x + 1)", ask(contender, name), ask(contender, "plain"), peer=peer
            )


def _models(effort: Effort) -> Iterator[Row]:
    section = "examples/shallow_water.py: how many times as many steps in a second"
    for (ny, nx), (chunk, count) in effort.models.items():

        def ask(contender: str, tail: str = f"{ny} {nx} {chunk} {count}", name: str = "own") -> Measurement:
            return Measurement(contender, f"model {name} {tail}")

        at = f"{nx} x {ny}"
        cpu = ask("cpu")
        for contender in ("host", "nccl"):
            yield Row(section, f"two ranks, {contender}, {at}", "two CPU cores", ask(contender), cpu, "speed")
            alone = ask(contender, name="own-alone")
            yield Row(section, f"two ranks, {contender}, {at}", "without exchanges", ask(contender), alone, "speed")
        one = ask("host, one rank")
        yield Row(section, f"one rank, {at}", "two CPU cores", one, cpu, "speed")
        yield Row(section, f"two ranks, host, {at}", "one rank on the same GPU", ask("host"), one, "speed")


def starters(
    wanted: Sequence[Row], variables: Mapping[str, str], fake: bool, logs: Path
) -> dict[str, Callable[[], Job] | str]:
    """Return what starts each contender of these rows: a function, or a sentence that says why it cannot be started."""
    logs.mkdir(parents=True, exist_ok=True)
    jax_worker = [sys.executable, str(HERE / "jax_worker.py"), "{socket}"]
    raw = [sys.executable, str(HERE / "gpu_copies.py"), "{socket}"]

    host = {"MPIXLA_GPU_TRANSPORT": "host"}
    nccl = {"MPIXLA_GPU_TRANSPORT": "nccl", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    ours, mpi4jax = [*jax_worker, "mpixla"], [*jax_worker, "mpi4jax"]
    contenders: dict[str, tuple[int, Sequence[str], Mapping[str, str]]] = {
        "raw": (2, raw, {}),
        "host": (2, ours, host),
        "nccl": (2, ours, nccl),
        "cpu": (2, [str(HERE / "pinned"), *ours], {"JAX_PLATFORMS": "cpu", "MPIXLA_FAKE_DEVICE": "0"}),
        "raw, one rank": (1, raw, {}),
        "host, one rank": (1, ours, host),
        "nccl, one rank": (1, ours, nccl),
        "mpi4jax": (2, mpi4jax, {"MPI4JAX_USE_CUDA_MPI": "0"}),
    }
    asked = {m.contender for row in wanted for m in row.measurements()}

    def start(name: str) -> Job:
        print(f"starting {name}", flush=True)
        ranks, command, more = contenders[name]
        log = logs / f"{name.replace(', ', '-').replace(' ', '-')}.log"
        return Job(name, [[machine.MPIRUN, "-n", str(ranks), *command]], ranks, {**variables, **more}, log)

    found: dict[str, Callable[[], Job] | str] = {name: partial(start, name) for name in contenders if name in asked}
    if "mpi4jax" in found and (why_not := mpi4jax_is_missing(variables, fake, logs)):
        found["mpi4jax"] = why_not
    return found


def mpi4jax_is_missing(variables: Mapping[str, str], fake: bool, logs: Path) -> str:
    """Return why mpi4jax cannot be measured, or nothing."""
    if fake:
        return "the fake GPU is not for it"
    done = machine.run(machine.job([sys.executable, "-c", "import mpi4jax"], {}), variables, 60, logs / "import.log")
    errors = [line.strip() for line in done.text.splitlines() if "Error" in line] or ["it cannot be imported"]
    return "" if done.status == 0 else errors[-1][:200]


class Rounds:
    """The figures as they come.

    Args:
        contenders: what starts them, or why they cannot be started.
        wanted: the rows.
        end: the time (time.monotonic()) after which nothing is asked any more.
    """

    def __init__(self, contenders: Mapping[str, Callable[[], Job] | str], wanted: Sequence[Row], end: float) -> None:
        self._contenders, self._end = contenders, end
        self._groups = list(dict.fromkeys(tuple(row.measurements()) for row in wanted))
        self._rounds: list[dict[Measurement, list[float]]] = []
        self._failed: dict[Measurement, str] = {}
        self._jobs: dict[str, Job] = {}
        self._starts: Counter[str] = Counter()

    def close(self) -> None:
        for job in self._jobs.values():
            job.close()

    def _job(self, name: str) -> Job:
        """Return the contender, started if it is not up, a few times."""
        start = self._contenders[name]
        if isinstance(start, str):
            raise NoAnswerError(start)
        job = self._jobs.get(name)
        if (not job or not job.is_up) and self._starts[name] < STARTS and self._end - time.monotonic() > PATIENCE:
            self._starts[name] += 1
            job = self._jobs[name] = start()
        if not job:
            raise NoAnswerError("the time was over before it was started")
        return job

    def measure(self, rounds: int) -> Iterator[None]:
        """Measure, and yield whenever results may be written."""
        lasted = 0.0
        for round_ in range(rounds + 1):
            begin = time.monotonic()
            if begin + lasted > self._end:
                print(f"no time is left for round {round_}", flush=True)
                return
            self._rounds.append({})
            for group in self._groups:
                for measurement in random.Random(round_).sample(group, len(group)):
                    self._one(measurement)
                yield
            lasted = time.monotonic() - begin if round_ > 0 else 0.0
            print(f"round {round_} of {rounds}: {time.monotonic() - begin:.0f} s", flush=True)
            yield

    def _one(self, measurement: Measurement) -> None:
        left = self._end - time.monotonic()
        if measurement in self._rounds[-1] or measurement in self._failed or left < 1:
            return
        try:
            answers = self._job(measurement.contender).ask(measurement.line, min(TIMEOUT, left))
        except NoAnswerError as error:
            if left > TIMEOUT:  # else it may be the time
                self._failed[measurement] = f"{measurement.contender}: {' '.join(str(error).split())[:300]}"
        else:
            self._rounds[-1][measurement] = figure_of(measurement.line, slowest(answers))

    def complete(self) -> list[dict[Measurement, list[float]]]:
        """Return the rounds that count. In the first one programs are compiled: it does if there is no other."""
        wanted = [m for group in self._groups for m in group if m not in self._failed]
        whole = [r for r in self._rounds[1:] if all(m in r for m in wanted)]
        return whole or self._rounds[:1]

    def figures(self) -> dict[Measurement, Figures]:
        rounds = self.complete()
        all_of_them = [m for group in self._groups for m in group]
        return {
            m: self._failed.get(m) or ([r[m] for r in rounds] if all(m in r for r in rounds) else "the time was over")
            for m in all_of_them
        }


def page(facts: Mapping[str, str], wanted: Sequence[Row], figures: Mapping[Measurement, Figures], rounds: int) -> str:
    parts = [
        "# Benchmarks on a GPU",
        "Written by `make bench-gpu`. Medians over the rounds. Both ranks of a pair make the raw copies at once, too.",
        table(["", ""], [[name, text] for name, text in {**facts, "rounds": str(rounds)}.items()]),
    ]
    for section in dict.fromkeys(row.section for row in wanted):
        lines = [line(row, figures) for row in wanted if row.section == section]
        parts += [f"## {section}", table(["measured", "over", "median", "quartiles", "mpi4jax"], lines)]
    parts += ["## Fastest pieces", "\n".join(f"- {line}" for line in fastest(figures)) or "None were measured."]
    parts += [
        "## Times",
        "Of one operation, with its bytes by its time; for a model, of all steps, with steps by time.",
    ]
    times = [
        [m.contender, m.line, f"{1e6 * seconds:,.2f} us", rate(m.line, seconds)]
        for m, given in figures.items()
        if not isinstance(given, str)
        for seconds in [statistics.median(f[0] for f in given)]
    ]
    return "\n\n".join([*parts, table(["contender", "asked", "median", ""], times), ""])


def line(row: Row, figures: Mapping[Measurement, Figures]) -> list[str]:
    """Return a row's line in its table."""
    result = result_of(row, figures)
    peer = result_of(row, figures, row.peer) if row.peer else Result(None)
    if result.value is None:
        return [row.what, row.over, f"not available: {result.why_not}", "", ""]
    spread = f"{number(result.low, row.kind)} to {number(result.high, row.kind)}"
    return [row.what, row.over, number(result.value, row.kind), spread, number(peer.value) if row.peer else ""]


def rate(asked: str, seconds: float) -> str:
    """Return the rate in a second, or "" where a rate says nothing."""
    verb, *words = asked.split()
    if verb == "model":
        return f"{int(words[3]) * int(words[4]) / seconds:,.0f} steps/s"
    size = int(words[2]) if verb == "chain" else 0
    return f"{size / seconds / 1e9:.2f} GB/s" if size >= 64 * KIB and seconds > 0 else ""


def fastest(figures: Mapping[Measurement, Figures]) -> list[str]:
    """Return for each operation and size the fastest pieces, and how many times as long the others took."""
    times: dict[tuple[str, int], dict[int, float]] = {}
    for m, given in figures.items():
        words = m.line.split()
        if words[0] == "chain" and "@" in words[1] and not isinstance(given, str):
            op, piece = words[1].split("@")
            times.setdefault((op, int(words[3])), {})[int(piece)] = statistics.median(f[0] for f in given)
    lines = []
    for (op, size), of_pieces in times.items():
        least = min(of_pieces.values())
        each = [
            f"{number(seconds / least if least > 0 else None)} {size_name(piece) if piece < WHOLE else 'whole'}"
            for piece, seconds in sorted(of_pieces.items(), key=lambda item: item[1])
        ]
        lines.append(f"{op}, {size_name(size)}: " + ", ".join(each))
    return lines


def main() -> int:
    args = machine.parser("Measures mpixla on a GPU.", 560).parse_args()
    end = time.monotonic() + args.seconds - RESERVE
    effort = QUICK if args.quick else FULL
    variables = machine.environment(args.fake, args.wheels, mpi4jax=not args.fake)
    facts = machine.about(variables, args.fake, machine.BUILD / "logs" / "about.log")
    wanted = rows(effort)
    if args.quick:  # the first rows of each table
        tables = [[row for row in wanted if row.section == section] for section in {row.section: 0 for row in wanted}]
        wanted = [row for of_table in tables for row in of_table[:2] if "one rank" not in row.measured.contender]
    rounds = Rounds(starters(wanted, variables, args.fake, machine.BUILD / "logs" / "bench"), wanted, end)

    def write() -> None:
        figures = rounds.figures()
        data: Any = [{"contender": m.contender, "line": m.line, "figures": f} for m, f in figures.items()]
        text = page(facts, wanted, figures, len(rounds.complete()))
        machine.write(args.out, "gpu-bench", {"machine": facts, "measured": data}, text)

    written = 0.0
    try:
        for _ in rounds.measure(effort.rounds):
            if time.monotonic() - written > 10:
                write()
                written = time.monotonic()
    finally:
        write()
        rounds.close()
    print(f"wrote {args.out / 'gpu-bench.md'} and .json")
    ours = [f for m, f in rounds.figures().items() if m.contender == "host"]
    return int(any(isinstance(f, str) and f != "the time was over" for f in ours))


if __name__ == "__main__":
    sys.exit(main())
