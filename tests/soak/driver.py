"""Runs programs, one after the other, and compares what each rank has with the oracle."""

import argparse
import faulthandler
import time
import warnings
from collections import Counter
from typing import Any

import jax
import numpy as np
from mpi4py import MPI

from soak import prelude
from soak.oracle import same
from soak.program import SHARED_BY, Program, draw

DRAWS = 4
WORLD = MPI.COMM_WORLD


class Wrong(Exception):
    """A result that is not what the oracle says."""


class Driver:
    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.comm = WORLD.Dup()  # what the driver says to itself on other ranks
        self.rank, self.size = WORLD.Get_rank(), WORLD.Get_size()
        self.counts: Counter = Counter()
        self.space: dict[str, Any] = {k: v for k, v in vars(prelude).items() if not k.startswith("__")}

    def run(self) -> int:
        start = time.monotonic()
        number = self.options.first if self.options.program is None else self.options.program
        while True:
            self.program(number)
            number += 1
            over = self.options.program is not None or time.monotonic() - start > 60 * self.options.minutes
            if self.comm.bcast(over, 0):
                break
        if self.rank == 0:
            print(dict(self.counts))
        return 0

    def program(self, number: int) -> None:
        faulthandler.dump_traceback_later(self.options.limit, exit=True)
        program = draw(self.options.seed, number, self.size)
        space = dict(self.space)
        space["most_bytes"] = MPI.Op.Create(prelude.most_bytes, commute=True)
        space["the_first"] = MPI.Op.Create(prelude.the_first, commute=False)
        exec(program.setup([*program.shared, *program.own]), space)
        exec(compile(program.text, "program.py", "exec"), space)
        jax.config.update("jax_disable_most_optimizations", not program.optimized)
        functions = {"eager": space["program"], "jit": jax.jit(space["program"]), "sealed": space["mpixla"].jit(space["program"])}
        for how, function in functions.items():
            for i in range(1 if how == "eager" else DRAWS):
                given, wanted = program.inputs(i), program.expected(i)
                got = function(*(jax.numpy.asarray(x[self.rank]) for x in given))
                for n, (g, w) in enumerate(zip(got, wanted, strict=True)):
                    self.counts["checks"] += 1
                    if not same(g, w[self.rank], not program.transform or program.transform == "vmap"):
                        print(program.script(i), flush=True)
                        raise Wrong(f"program {number} {how} draw {i} result {n}: {np.asarray(g)!r} not {w[self.rank]!r}")
        self.counts["programs"] += 1
        exec(program.teardown([*program.shared, *program.own]), space)
        faulthandler.cancel_dump_traceback_later()
