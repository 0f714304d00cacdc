"""Runs programs, one after the other, and compares what each rank has with the oracle."""

import argparse
import contextlib
import faulthandler
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import numpy as np
from mpi4py import MPI

from soak import alone, prelude
from soak.comms import Comm
from soak.oracle import Arrays, same
from soak.program import SHARED_BY, Program, draw
from soak.report import watched, write
from soak.watch import Watch

WORLD = MPI.COMM_WORLD
DRAWS = {"eager": 2, "jit": 6, "donated": 6, "mpixla.jit": 6, "without windows": 2, "in two parts": 2}
LOOK = 2 * SHARED_BY  # programs between two looks at what may not grow

# JAX says of what cannot be donated; it is not wanted, only possible.
warnings.filterwarnings("ignore", "Some donated buffers were not usable")


class Driver:
    """Runs what the command line asks for. All ranks do the same."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.comm = WORLD.Dup()  # what the driver says to itself on other ranks
        self.rank, self.size = WORLD.Get_rank(), WORLD.Get_size()
        self.counts: Counter = Counter(programs=0, steps=0, runs=0, checks=0, communicators=0)
        self.ops: Counter = Counter()
        self.types: Counter = Counter()
        self.modes: Counter = Counter()
        self.kinds: Counter = Counter()
        self.watch = Watch()
        self.wrong: list[str] = []
        self.wrong_inputs: list[int] = []
        self.space: dict[str, Any] = {k: v for k, v in vars(prelude).items() if not k.startswith("__")}
        if options.control:
            self.space["mpixla"] = alone
        self.shared: list[Comm] = []
        self.made: list[MPI.Op] = []

    def run(self) -> int:
        """Return the exit status, the same on all ranks."""
        start = time.monotonic()
        only = self.options.program
        number = self.options.first if only is None else only
        while True:
            program = draw(self.options.seed, number, self.size)
            if only is not None or number % SHARED_BY == 0 or not self.shared:
                self._share(program)
            with self._ends_well(program):
                self._one(program)
            if self.comm.allreduce(len(self.wrong)):
                return self._fail(program)
            number += 1
            over = only is not None or time.monotonic() - start > 60 * self.options.minutes
            over = self.comm.bcast(over, 0)
            if number % LOOK == 0 or over:
                faulthandler.dump_traceback_later(self.options.limit, exit=True)
                self._share(None)
                self.watch.look()
            if over:
                break
        faulthandler.cancel_dump_traceback_later()
        return self._report(time.monotonic() - start)

    # One program

    def _share(self, program: Program | None) -> None:
        """Free what the programs before had in common, and make it for this one and those behind it."""
        exec(_teardown(self.shared), self.space)
        for op in self.made:
            op.Free()
        self.made = []
        self.shared = []
        if program:
            self.shared = program.shared
            exec(program.setup(self.shared), self.space)
            for function, commutes in ((prelude.the_first, False), (prelude.most_bytes, True)):
                self.made.append(MPI.Op.Create(function, commutes))
                self.space[function.__name__] = self.made[-1]

    def _one(self, program: Program) -> None:
        space = dict(self.space)
        exec(program.setup(program.own), space)
        # One name of a file for all: what is kept for each line of a file must not grow.
        exec(compile(program.text, "program.py", "exec"), space)
        jax.config.update("jax_disable_most_optimizations", not program.optimized)
        draws = [(program.inputs(i), program.expected(i)) for i in range(max(DRAWS.values()))]
        for how, function in self._functions(program, space):
            self.modes[how] += 1
            for i, (given, wanted) in enumerate(draws[: DRAWS[how]]):
                results = function(*(jax.numpy.asarray(x[self.rank]) for x in given))
                jax.block_until_ready(results)
                self.counts["runs"] += 1
                if not self.options.control:
                    self._compare(program, how, i, results, wanted)
                    self._check_statuses(program, how, i, space)
        jax.effects_barrier()
        self.comm.Barrier()
        self._check_nothing_is_left(program, space)
        exec(_teardown(program.own), space)
        self.counts["programs"] += 1
        self.counts["steps"] += len(program.steps)
        self.counts["communicators"] += sum(c.freed for c in program.own)
        self.ops += program.ops
        self.types += program.types
        self.kinds[program.transform or "none"] += 1

    def _functions(self, program: Program, space: dict[str, Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
        function = space["program"]
        yield "eager", function
        if program.number % 4 == 0:
            yield "donated", jax.jit(function, donate_argnums=tuple(range(len(program.parameters))))
        else:
            yield "jit", jax.jit(function)
        yield "mpixla.jit", space["mpixla"].jit(function)
        if ".at[" in program.text:
            with mock.patch.dict(os.environ, MPIXLA_WINDOWS="0"):
                yield "without windows", jax.jit(lambda *x: function(*x))
        if program.number % 3 == 0 and program.halves:
            exec(compile(program.halves, "halves.py", "exec"), space)
            first, second = jax.jit(space["first"]), jax.jit(space["second"])
            yield "in two parts", lambda *x: second(*first(*x))

    def _compare(self, program: Program, how: str, draw: int, results: Any, wanted: list[Arrays]) -> None:
        exact = program.transform in ("", "vmap")
        for i, (got, want) in enumerate(zip(results, wanted, strict=True)):
            self.counts["checks"] += 1
            if not same(got, want[self.rank], exact):
                self.wrong_inputs.append(draw)
                self.wrong.append(
                    f"rank {self.rank}, {how}, inputs {draw}: result {i} is\n{np.asarray(got)!r}\n"
                    f"and should be\n{want[self.rank]!r}"
                )

    def _check_statuses(self, program: Program, how: str, draw: int, space: dict[str, Any]) -> None:
        for name, expected in program.statuses:
            source, tag, size = expected[self.rank]
            status = space[name]
            got = (status.Get_source(), status.Get_count(MPI.BYTE))
            self.counts["checks"] += 1
            wanted = (MPI.PROC_NULL if source is None else source, size)
            if got != wanted or (source is not None and status.Get_tag() != tag):
                self.wrong.append(f"rank {self.rank}, {how}, inputs {draw}: {name} has {got}, and should have {wanted}")

    def _check_nothing_is_left(self, program: Program, space: dict[str, Any]) -> None:
        """Check that no message is left: it might be taken for one of a later communicator."""
        for comm in [*program.own, *self.shared]:
            status = MPI.Status()
            if comm.name and space[comm.name].Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
                self.wrong.append(
                    f"rank {self.rank}: nobody has received a message of {status.Get_count(MPI.BYTE)} bytes from rank "
                    f"{status.source} with tag {status.tag} on {comm.name}"
                )

    # The end

    @contextlib.contextmanager
    def _ends_well(self, program: Program) -> Iterator[None]:
        """End a program that does not end, and the job if one fails: other ranks may be waiting."""
        faulthandler.dump_traceback_later(self.options.limit, exit=True)
        try:
            yield
        except Exception:
            text = f"rank {self.rank}:\n{traceback.format_exc()}\n{self._which(program)}\n"
            sys.stderr.write(text)
            sys.stderr.flush()
            time.sleep(0.5)  # mpirun drops what it has not forwarded when a job aborts
            WORLD.Abort(1)

    def _which(self, program: Program) -> str:
        return (
            f"This was program {program.number} of seed {program.seed} on {self.size} ranks. "
            "A script that runs it alone is printed by\n"
            f"    python tests/soak/run.py --seed {program.seed} --program {program.number} --ranks {self.size} --show"
        )

    def _fail(self, program: Program) -> int:
        texts = self.comm.gather(self.wrong)
        draws = [draw for draws in self.comm.allgather(self.wrong_inputs) for draw in draws]
        if self.rank == 0:
            some = [text for texts_of_rank in texts for text in texts_of_rank[:2]]
            print("\n\n".join([*some, program.script(min(draws, default=0)), self._which(program)]), flush=True)
        return 1

    def _report(self, seconds: float) -> int:
        watches = self.comm.gather((watched(self.watch), self.watch.complaints()))
        if self.rank > 0:
            return int(self.comm.bcast(None))
        grown = [f"rank {rank}: {text}" for rank, (_, texts) in enumerate(watches) for text in texts]
        figures = {
            "MPI": _library(),
            "ranks": self.size,
            "JAX": jax.__version__,
            "seed": self.options.seed,
            "minutes": round(seconds / 60, 1),
            **self.counts,
            "compilations": self.watch.compiled,
            "wrong": 0,
            "grown": grown,
            "modes": dict(self.modes.most_common()),
            "transformations": dict(self.kinds.most_common()),
            "operations": dict(sorted(self.ops.items())),
            "data types": dict(sorted(self.types.items())),
            "watched": [figures for figures, _ in watches],
        }
        write(figures, self.options.write)
        return int(self.comm.bcast(1 if grown else 0))


def _library() -> str:
    """Return MPI's name and version: "MPICH 5.0.2"."""
    version = MPI.Get_library_version().splitlines()[0].split(",")[0].replace("Version:", "").replace(" v", " ")
    return " ".join(version.strip("\0").split())


def _teardown(comms: list[Comm]) -> str:
    return "".join(f"{c.name}.Free()\n" for c in reversed(comms) if c.name and c.freed)
