"""The rows of the tables: measurements, and the measurements with which they are compared.

A measurement is what one contender is asked (bench/worker.py). A row is one measurement over another, or minus it,
and what is to be reached.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

OPS = ("allgather", "allreduce", "alltoall", "bcast", "reduce", "scan", "sendrecv")
# Those whose ranks wait for each other in C as well; of the others who sends goes on.
WAITING_OPS = ("allgather", "allreduce", "alltoall", "barrier")
IN_PLACE_OPS = ("allreduce", "bcast", "scan")
# Operations that are called eagerly beside those (bench/jax_worker.py), and some of them on a pytree of two arrays.
# fmt: off
EAGER = (
    "allgather", "allgatherv", "alltoall", "alltoallv", "assert_replicated", "barrier", "exscan", "fsum",
    "gather", "gatherv", "halo_exchange", "iallgather", "iallreduce", "ialltoall", "ialltoallv", "ibarrier",
    "ibcast", "iexscan", "igather", "ireduce", "ireduce_scatter", "iscan", "iscatter", "isendrecv",
    "neighbor_allgather", "neighbor_alltoall", "neighbor_alltoallv", "norm", "ragged_all_to_all", "rank",
    "recv", "reduce", "reduce_scatter", "scan", "scatter", "scatterv", "send", "shift", "vdot",
    "allgather_tree", "allreduce_tree", "bcast_tree", "halo_exchange_tree", "norm_tree", "sendrecv_tree",
)
# fmt: on
KIB, MIB = 1 << 10, 1 << 20
CLIENTS = "Programs written for mpi4jax, unmodified"


class Measurement(NamedTuple):
    """A line that a contender is asked, or for "import" a statement."""

    contender: str
    line: str


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
        section: the table.
        what: what is measured.
        over: what it is compared with.
        measured: mpixla's figure, or what it is.
        against: the other figure; None where the figure itself is what counts.
        kind: "ratio", measured / against; "difference", their difference in microseconds; "speed", against / measured;
            "number", the figure itself; "time", the same in microseconds.
        target: what is to be reached, if anything is.
        at_least: whether more is better.
        peer: mpi4jax's figure for the same, compared with the same.
        figure: which of the numbers of an answer, for those that are not times.
    """

    section: str
    what: str
    over: str
    measured: Measurement
    against: Measurement | None = None
    kind: str = "ratio"
    target: float | None = None
    at_least: bool = False
    peer: Measurement | None = None
    figure: int = 0

    def measurements(self) -> Iterator[Measurement]:
        """Return all measurements of this row."""
        yield from (m for m in (self.measured, self.against, self.peer) if m)


@dataclass(frozen=True)
class Effort:
    """How much is done: all of it, or what fits in two minutes.

    Attributes:
        rounds: how often everything is measured, after a first time that does not count.
        times: repetitions in a round.
        sizes: bytes of messages, each with the lengths of the longer and the shorter chain.
        calls: calls in a row.
        slow_calls: the same for what takes milliseconds.
        grow_calls: calls over which memory must not grow.
        models: sizes of the shallow-water model, with time steps in a chunk, and chunks.
        ocean_steps: time steps of Veros.
    """

    rounds: int
    times: int
    sizes: dict[int, tuple[int, int]]
    calls: int
    slow_calls: int
    grow_calls: int
    models: dict[tuple[int, int], tuple[int, int]]
    ocean_steps: int


# A chain of SHORT has used the memory that one of LONG uses.
SIZES = {4: (136, 8), KIB: (136, 8), 64 * KIB: (36, 4), MIB: (20, 4), 16 * MIB: (12, 4)}
FULL = Effort(5, 11, SIZES, 2000, 20, 100_000, {(180, 360): (100, 20), (1800, 3600): (10, 2)}, 50)
QUICK = Effort(1, 3, {4: (24, 8), MIB: (8, 4)}, 300, 2, 1000, {(180, 360): (50, 1)}, 4)


def size_name(size: int) -> str:
    """Return a number of bytes as people write it."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def rows(effort: Effort) -> list[Row]:
    """Return all rows, table by table."""
    return [
        *_calls(effort),
        *_chains(effort),
        *_halos(effort),
        *_local(effort),
        *_limits_of_chains(effort),
        *_thread_levels(effort),
        *_loops(effort),
        *_extremes(effort),
        *_watchers(effort),
        *_models(effort),
        *_sharded(effort),
        *_exact(effort),
        *_others(effort),
    ]


def rows_of_clients(effort: Effort) -> list[Row]:
    """Return the rows of programs for mpi4jax that run unmodified: a run of their own."""
    section, over = CLIENTS, "on mpi4jax"
    found = []
    for (ny, nx), (chunk, count) in effort.models.items():
        line, what = f"model peer {ny} {nx} {chunk} {count}", f"mpi4jax's shallow-water example, {nx} x {ny}"
        mpixla = Measurement("mpixla", line)
        is_small = (ny, nx) == next(iter(effort.models))
        found.append(Row(section, what, over, mpixla, Measurement("mpi4jax", line), target=0.66 if is_small else 0.85))
        if is_small:
            halo = Measurement("through MPI", line.replace("peer", "peer-halo"))
            found.append(Row(section, what, "with halo_exchange, through MPI", mpixla, halo, target=1.1))
            found.append(Row(section, what, "with MPIXLA_WINDOWS=0", mpixla, Measurement("without windows", line)))
            compiling = [Measurement(name, f"compile peer {ny} {nx} {chunk}") for name in ("mpixla", "mpi4jax")]
            found.append(Row(section, f"compiling {what}", over, *compiling, target=1))
    steps = [Measurement(f"Veros on {name}", f"steps {effort.ocean_steps}") for name in ("mpixla", "mpi4jax")]
    return [*found, Row(section, "Veros, acc_basic, a time step", over, *steps, target=0.63)]


def _calls(effort: Effort) -> Iterator[Row]:
    def ask(contender: str, name: str) -> Measurement:
        slow = contender == "mpi4jax" and name.startswith("eager")
        calls, times = (effort.slow_calls, 1) if slow else (effort.calls, effort.times)
        return Measurement(contender, f"call {name} {calls} {times}")

    section, plain = "Calls from Python", ask("mpixla", "plain")
    over = "jax.jit(x + 1)"
    jit = ask("mpi4jax", "jit")
    yield Row(section, "mpixla.jit, one 4-byte allreduce", over, ask("mpixla", "sealed"), plain, target=1.25, peer=jit)
    for contender, where in (("serialized", "with MPI_THREAD_SERIALIZED"), ("mpixla on 1 rank", "on one rank")):
        what, both = f"mpixla.jit, one 4-byte allreduce, {where}", (ask(contender, "sealed"), ask(contender, "plain"))
        yield Row(section, what, over, *both)
    yield Row(section, "jax.jit, one 4-byte allreduce", "mpi4jax's", ask("mpixla", "jit"), jit, target=0.6)
    yield Row(section, "jax.jit, one 4-byte allreduce", over, ask("mpixla", "jit"), plain, peer=jit)
    for op in ("allreduce", "sendrecv", "bcast"):
        name = f"eager_{op}"
        peer = ask("mpi4jax", name)
        yield Row(section, f"eager {op} of 4 bytes", over, ask("mpixla", name), plain, target=3, peer=peer)
        alone = (ask("mpixla on 1 rank", name), ask("mpixla on 1 rank", "plain"))
        yield Row(section, f"eager {op} of 4 bytes, on one rank", over, *alone)
    for name in EAGER:
        few = Measurement("mpixla", f"call eager_{name} {effort.calls // 10} {effort.times // 2}")
        is_request = name.startswith("i")
        what = f"eager {name.replace('_tree', ' of a pytree')}" + (" and its wait" if is_request else "")
        yield Row(section, what, over, few, plain, target=7 if is_request else 3.5)
    yield Row(section, "jax.jit of a pytree of two arrays", over, ask("mpixla", "plain_tree"), plain)
    yield Row(section, "jax.jit of three arrays", over, ask("mpixla", "plain_three"), plain)
    for name in ("sealed", "eager_allreduce"):
        measured, off = ask("mpixla", name), ask("unwatched", name)
        what = "mpixla.jit, one 4-byte allreduce" if name == "sealed" else "eager allreduce of 4 bytes"
        yield Row(section, f"{what}, nothing set", "all turned off", measured, off)
    for op in ("allreduce", "sendrecv", "bcast"):
        grown = Measurement("mpixla", f"grow {op} {effort.grow_calls}")
        what = f"{effort.grow_calls:,} eager calls of {op}"
        yield Row(section, f"{what}: bytes of growth", "", grown, kind="number", target=MIB)
        yield Row(section, f"{what}: programs compiled", "", grown, kind="number", target=0, figure=1)


def _chain(contender: str, op: str, size: int, effort: Effort, dtype: str = "f32", verb: str = "chain") -> Measurement:
    long, short = effort.sizes[size]
    kind = "" if verb == "loop" else f"{dtype} "
    return Measurement(contender, f"{verb} {op} {kind}{size} {long} {short} {effort.times}")


def _ops_and_sizes(effort: Effort, most: int) -> Iterator[tuple[str, int, str]]:
    """Yield each operation at each size up to a limit, and its name in tables; a barrier has no size."""
    for op in sorted({*OPS, *WAITING_OPS}):
        if op == "barrier":
            yield op, 4, op
        else:
            yield from ((op, size, f"{op}, {size_name(size)}") for size in effort.sizes if size <= most)


def _target_of_chain(op: str, size: int) -> tuple[str, float]:
    """Return a ratio, or microseconds more than in C."""
    if op == "sendrecv":
        return ("difference", 0.2) if size <= KIB else ("ratio", 1.1)
    if size <= KIB:
        return ("ratio", 0.8) if op in WAITING_OPS else ("difference", 0.15)
    return "ratio", 0.9 if size <= MIB else 1.1


def _chains(effort: Effort) -> Iterator[Row]:
    section = "One operation in a chain of them"
    for op, size, what in _ops_and_sizes(effort, max(effort.sizes)):
        mpixla, mpi4jax, raw = (_chain(c, op, size, effort) for c in ("mpixla", "mpi4jax", "raw"))
        kind, target = _target_of_chain(op, size)
        yield Row(section, what, "raw C", mpixla, raw, kind=kind, target=target, peer=mpi4jax)


def _halos(effort: Effort) -> Iterator[Row]:
    """Yield rows of two periodic neighbours, over the four messages of raw C that exchange the same."""
    section = "Halos: rows for two periodic neighbours"
    for size in effort.sizes:
        contenders = ("mpixla", "raw", "through MPI")
        mpixla, raw, through_mpi = (_chain(c, "halo_exchange", size, effort) for c in contenders)
        what = f"halo_exchange, rows of {size_name(size)}"
        yield Row(section, what, "raw C", mpixla, raw, target=0.9 if size == 64 * KIB else 1)
        yield Row(section, what, "through MPI", mpixla, through_mpi)


def _local(effort: Effort) -> Iterator[Row]:
    """Yield rows on memory that ranks of one host share, on as many ranks as cores and on twice as many."""
    section = "Through memory that the ranks share"
    for ranks, both, target in (("2", ("mpixla", "through MPI"), None), ("4", ("4 ranks", "4 ranks through MPI"), 1.1)):
        for op, size, what in _ops_and_sizes(effort, 64 * KIB):
            if op != "sendrecv":
                pair = (_chain(contender, op, size, effort) for contender in both)
                yield Row(section, f"{what}, {ranks} ranks", "through MPI", *pair, target=target)
    line = f"call cg {effort.slow_calls} {effort.times}"
    solver = "conjugate gradients, 1e4 unknowns, 100 iterations"
    ours, theirs, through_mpi = (Measurement(c, line) for c in ("mpixla", "mpi4jax", "through MPI"))
    yield Row(section, solver, "mpi4jax's", ours, theirs, target=0.5)
    yield Row(section, solver, "through MPI", ours, through_mpi)
    alone = Measurement("mpixla", line.replace("cg", "cg-alone"))
    yield Row(section, f"{solver}, without communication", "mpi4jax's", alone, theirs)


def _limits_of_chains(effort: Effort) -> Iterator[Row]:
    """Yield rows of a chain without costs that are not mpixla's: MPI's thread level, and XLA's own calls."""
    for op in OPS:
        for size in [size for size in effort.sizes if size <= 64 * KIB]:
            small = size <= KIB
            mpixla, raw, multiple = (_chain(c, op, size, effort) for c in ("mpixla", "raw", "raw multiple"))
            section, what = "With MPI_THREAD_MULTIPLE in raw C too", f"{op}, {size_name(size)}"
            kind = "difference" if small else "ratio"
            yield Row(section, what, "raw C with MPI_THREAD_MULTIPLE", mpixla, multiple, kind=kind)
            yield Row(section, f"raw C's {what}, with MPI_THREAD_MULTIPLE", "raw C", multiple, raw, kind=kind)
    size = 64 * KIB
    if size in effort.sizes:
        in_place, raw = (_chain("raw", op, size, effort) for op in ("reduce_in_place", "reduce"))
        yield Row(section, f"raw C's reduce in place, {size_name(size)}", "raw C", in_place, raw)
    nothing = _chain("mpixla on 1 rank", "nothing", 4, effort)
    section = "One rank: nobody to wait for"
    yield Row(section, "an XLA call that does nothing", "", nothing, kind="time")
    for op in OPS:
        mpixla = _chain("mpixla on 1 rank", op, 4, effort)
        yield Row(section, f"{op}, 4 B", "an XLA call that does nothing", mpixla, nothing, kind="difference")


def _thread_levels(effort: Effort) -> Iterator[Row]:
    """Yield rows on the cost of MPI_THREAD_MULTIPLE, which mpi4py asks for, and so mpixla has."""
    for op in OPS:
        size = min(effort.sizes)
        serialized, multiple, raw = (_chain(c, op, size, effort) for c in ("serialized", "mpixla", "raw"))
        section = "With MPI_THREAD_SERIALIZED"
        yield Row(section, f"{op}, {size_name(size)}", "raw C", serialized, raw, kind="difference")
        yield Row(section, f"{op}, {size_name(size)}", "mpixla with MPI_THREAD_MULTIPLE", serialized, multiple)


def _loops(effort: Effort) -> Iterator[Row]:
    size = max(effort.sizes)
    for op in IN_PLACE_OPS:
        mpixla, mpi4jax = (_chain(c, op, size, effort, verb="loop") for c in ("mpixla", "mpi4jax"))
        against = _chain("raw", op, size, effort)
        section = "The carry of a loop"
        yield Row(section, f"{op}, {size_name(size)}", "raw C", mpixla, against, target=1.2, peer=mpi4jax)
    for op in ("allreduce", "scan"):
        in_place = _chain("raw", f"{op}_in_place", size, effort)
        what = f"raw C's {op} in place, {size_name(size)}"
        yield Row("The carry of a loop", what, "raw C", in_place, _chain("raw", op, size, effort))


def _extremes(effort: Effort) -> Iterator[Row]:
    """Yield rows on the cost of NaN in MAX of float32, which is mpixla's own operation. Both call MPI in place."""
    for size in effort.sizes:
        mpixla, raw = (_chain(c, "allreduce_max", size, effort) for c in ("mpixla", "raw multiple"))
        what, over = f"allreduce with MAX, {size_name(size)}", "raw C with MPI_THREAD_MULTIPLE, MPI's own MAX"
        yield Row("MAX, in which NaN wins", what, over, mpixla, raw)


# The contenders that are mpixla with variables set.
WATCHED = {
    "through MPI": {"MPIXLA_LOCAL": "0"},
    "unwatched": {"MPIXLA_CHECK": "0", "MPIXLA_TIMEOUT": "0"},
    "checked": {"MPIXLA_CHECK": "1"},
    "limited": {"MPIXLA_TIMEOUT": "300"},
    "traced": {"MPIXLA_TRACE": "{folder}"},
}


def _watchers(effort: Effort) -> Iterator[Row]:
    """Yield rows on the cost of comparing, limiting and recording calls."""
    section = "Checks, time limit and timeline"
    for size in (4, MIB):
        for op in ("allreduce", "sendrecv", "pingpong"):
            plain, off = (_chain(c, op, size, effort) for c in ("mpixla", "unwatched"))
            yield Row(section, f"{op}, {size_name(size)}, nothing set", "all turned off", plain, off, kind="difference")
            for contender in ("checked", "limited", "traced"):
                (variable,) = WATCHED[contender]
                watched = _chain(contender, op, size, effort)
                what = f"{op}, {size_name(size)}, {variable}"
                yield Row(section, what, "without", watched, plain, kind="difference")
        replicated, allreduce = (_chain("mpixla", op, size, effort) for op in ("assert_replicated", "allreduce"))
        yield Row(section, f"assert_replicated, {size_name(size)}", "allreduce", replicated, allreduce)


def _models(effort: Effort) -> Iterator[Row]:
    section = "Shallow-water model"
    for (ny, nx), (chunk, count) in effort.models.items():

        def ask(contender: str, name: str, tail: str = f"{ny} {nx} {chunk} {count}") -> Measurement:
            return Measurement(contender, f"model {name} {tail}")

        at = f"{nx} x {ny}"
        mpi4jax = ask("mpi4jax", "peer")
        mpi4jaxs = "mpi4jax's example"
        halo, own = ask("mpixla", "peer-halo"), ask("mpixla", "own")
        yield Row(section, f"mpi4jax's example with halo_exchange, {at}", mpi4jaxs, halo, mpi4jax, target=0.6)
        yield Row(section, f"examples/shallow_water.py, {at}", mpi4jaxs, own, mpi4jax, target=0.6)
        without = "without exchanges"
        what = f"mpi4jax's example with halo_exchange, {at}"
        yield Row(section, what, without, halo, ask("mpixla", "peer-alone"), target=1.05)
        yield Row(section, f"examples/shallow_water.py, {at}", without, own, ask("mpixla", "own-alone"), target=1.05)
        waiting, barrier = ask("mpixla", "own-barrier"), "a barrier for each exchange"
        yield Row(section, f"examples/shallow_water.py, {barrier}, {at}", without, waiting, ask("mpixla", "own-alone"))
        yield Row(section, f"examples/shallow_water.py, {at}", barrier, own, waiting)
        what = f"mpi4jax's example without exchanges, {at}"
        yield Row(section, what, mpi4jaxs, ask("mpixla", "peer-alone"), mpi4jax)
        alone = ask("mpixla on 1 rank", "own")
        what = f"examples/shallow_water.py, speed-up on two ranks, {at}"
        yield Row(section, what, "one rank", own, alone, kind="speed", target=1.8, at_least=True)
        what = f"examples/shallow_water.py without exchanges, speed-up on two ranks, {at}"
        yield Row(section, what, "one rank", ask("mpixla", "own-alone"), alone, kind="speed")
        alone, with_halo = ask("mpixla on 1 rank", "peer-halo"), "mpi4jax's example with halo_exchange"
        yield Row(section, f"{with_halo}, speed-up on two ranks, {at}", "one rank", halo, alone, "speed", 1.8, True)
        what = f"mpi4jax's example without exchanges, speed-up on two ranks, {at}"
        yield Row(section, what, "one rank", ask("mpixla", "peer-alone"), alone, "speed")


def _sharded(effort: Effort) -> Iterator[Row]:
    section = "JAX's own collectives"
    for op, name in (("allreduce", "psum"), ("allgather", "all_gather"), ("alltoall", "all_to_all")):
        for size in effort.sizes:
            over_mpi, over_gloo = (_chain(c, op, size, effort) for c in ("distributed", "gloo"))
            ours = _chain("distributed", f"mpixla.{op}", size, effort)
            what = f"jax.lax.{name} with mpixla.distributed, {size_name(size)}"
            yield Row(section, what, "with gloo", over_mpi, over_gloo)
            yield Row(section, what, f"mpixla.{op} in jax.shard_map", over_mpi, ours)
    line = f"{effort.slow_calls} {effort.times}"
    over_mpi, over_gloo = (Measurement(c, f"call cg {line}") for c in ("distributed", "gloo"))
    what = "jax.scipy's cg, 20 iterations on 256 x 256 cells, with mpixla.distributed"
    yield Row(section, what, "with gloo", over_mpi, over_gloo)
    yield Row(section, what, "with mpixla.halo_exchange", over_mpi, Measurement("distributed", f"call cg-halo {line}"))


def _exact(effort: Effort) -> Iterator[Row]:
    section = "Exact sums"

    def ask(kind: str, dtype: str, count: str, orders: int, calls: int = effort.slow_calls) -> Measurement:
        return Measurement("mpixla", f"call {kind}:{dtype}:{count}:{orders} {calls} {effort.times}")

    for dtype, count, orders, target in (
        ("f64", "1e6", 0, 3.5),
        ("f64", "2e7", 0, 2),
        ("f64", "1e6", 170, 8),
        ("f32", "1e6", 0, 3),
    ):
        spread = f" spread over {orders} binary orders" if orders else ""
        pair = (ask(kind, dtype, count, orders) for kind in ("fsum", "sum"))
        yield Row(section, f"fsum of {count} {dtype}{spread}", "allreduce of jnp.sum", *pair, target=target)
    few = (ask(kind, "f64", "1000", 0, effort.calls) for kind in ("fsum", "sum"))
    yield Row(section, "fsum of 1000 f64", "allreduce of jnp.sum", *few, kind="difference", target=2)
    for dtype in ("f64", "f32"):
        pair = (ask(kind, dtype, "1e6", 0) for kind in ("vdot_exact", "vdot"))
        yield Row(section, f"vdot of 1e6 {dtype}, exact", "vdot", *pair, target=6)
    gathered = ask("gathered", "f64", "1e6", 0, 1)
    yield Row(
        section, "fsum of 1e6 f64", "math.fsum of the gathered array", ask("fsum", "f64", "1e6", 0), gathered, "speed"
    )


def _others(effort: Effort) -> Iterator[Row]:
    section = "Other"
    size, lengths = 100 * KIB, (36, 4)
    line = f"{size} {lengths[0]} {lengths[1]} {effort.times}"
    tree, flat = (
        {c: Measurement(c, f"chain {op} f32 {line}") for c in ("mpixla", "mpi4jax")} for op in ("tree", "allreduce")
    )
    what = "allreduce of a pytree, 100 leaves of 1 KiB"
    yield Row(section, what, "one of 100 KiB", tree["mpixla"], flat["mpixla"], target=1.5)
    for contender in ("raw", "raw multiple"):
        whole = [Measurement(contender, f"chain {op} f32 {line}") for op in ("tree", "allreduce")]
        multiple = " with MPI_THREAD_MULTIPLE" if contender == "raw multiple" else ""
        yield Row(
            section, f"raw C{multiple}: packing 100 leaves of 1 KiB, allreduce, cutting", "one of 100 KiB", *whole
        )
    calls = {name: Measurement("mpixla", f"call {name} {effort.calls} {effort.times}") for name in CALLED_TREES}
    yield Row(section, f"{what}, a call of mpixla.jit", "one of 100 KiB", *calls.values())
    for dtype in ("f16", "bf16"):
        for bytes_ in [size for size in effort.sizes if size >= 64 * KIB]:
            short, full = (_chain("mpixla", "allreduce", bytes_, effort, name) for name in (dtype, "f32"))
            what = f"allreduce of {dtype}, {size_name(bytes_)}, bytes per second"
            yield Row(section, what, "f32's", short, full, kind="speed", target=0.8, at_least=True)
    for (ny, nx), (chunk, count) in effort.models.items():
        halves = [Measurement("mpixla", f"model {name} {ny} {nx} {chunk} {count}") for name in ("heat-overlap", "heat")]
        yield Row(section, f"examples/overlap.py, overlapped, {nx} x {ny}", "its blocking form", *halves)
    lowered = [Measurement("mpixla", f"lower {name} {2 * effort.calls} 2") for name in ("with", "without")]
    yield Row(section, f"lowering {4 * effort.calls:,} equations and an allreduce", "without it", *lowered, target=1.15)
    ours, theirs = (Measurement("import", f"import {modules}") for modules in ("mpixla", "jax, mpi4py.MPI"))
    yield Row(section, "import mpixla", "import jax, mpi4py.MPI", ours, theirs, target=1.1)
    for size in effort.sizes:
        mpixla, mpi4py, gloo = (_chain(c, "allreduce", size, effort) for c in ("mpixla", "mpi4py", "gloo"))
        what = f"allreduce in a chain, {size_name(size)}"
        yield Row(section, what, "mpi4py's from Python", mpixla, mpi4py)
        yield Row(section, what, "jax.distributed with gloo", mpixla, gloo)
    # What these two are away from 1 is noise.
    for what, contender, line in (
        ("jax.jit(x + 1)", "mpixla", f"call plain {effort.calls}"),
        ("raw C's allreduce, 1 MiB", "raw", f"chain allreduce f32 {MIB} {effort.sizes[MIB][0]} {effort.sizes[MIB][1]}"),
    ):
        again, once = (Measurement(contender, f"{line} {effort.times + more}") for more in (1, 0))
        yield Row(section, f"{what}, measured again", "itself", again, once)


CALLED_TREES = ("sealed_tree", "sealed_flat")
