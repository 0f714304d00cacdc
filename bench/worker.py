"""The common part of the benchmarks' contenders: answering the runner, and timing.

A contender is a job of some ranks that stays up while the benchmarks run. Each rank connects to the runner's socket
and sends its number. Then it answers each line that it reads, a measurement and its arguments, with one line of JSON:
a list of repetitions, each a list of numbers, or {"error": why not}. Between two lines it sleeps, so that it is in
nobody's way. The measurements, and what the numbers are:

    chain OP DTYPE BYTES LONG SHORT TIMES   seconds for a program of LONG operations, and for one of SHORT
    loop OP BYTES LONG SHORT TIMES          the same where the operand is the carry of a loop
    call NAME CALLS TIMES                   seconds for one call, of CALLS in a row
    grow OP CALLS                           bytes by which the process grew, and programs that it compiled
    model NAME NY NX CHUNK COUNT            seconds for COUNT chunks of CHUNK time steps
    compile NAME NY NX CHUNK                seconds to trace, lower and compile the loop of a model
    steps COUNT                             seconds for one time step, of COUNT in a row (veros_worker.py)
    save NAME NY NX CHUNK COUNT FILE        the same, and the fields afterwards are in FILE.RANK.npy
    copies OP BYTES                         copies of the operand in a step of a chain, and of a loop (not seconds)
    about                                   one object of versions (no list)
"""

import json
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

Verb = Callable[..., Any]


def serve(path: str, rank: int, verbs: Mapping[str, Verb]) -> None:
    """Answer the runner until it hangs up. A verb is called with the words of the line, integers as such."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        stream = connection.makefile("rw", encoding="utf-8")
        print(rank, file=stream, flush=True)
        for line in stream:
            verb, *words = line.split()
            try:
                if verb not in verbs:
                    raise NotImplementedError(f"this contender does not measure '{verb}'")
                answer = verbs[verb](*(int(word) if word.isdigit() else word for word in words))
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=stream, flush=True)


def seconds(run: Callable[[], Any], barrier: Callable[[], Any]) -> float:
    """Return how long ``run`` takes on this rank. All ranks begin together; the runner takes the longest."""
    barrier()
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def repeat(runs: list[Callable[[], Any]], times: int, barrier: Callable[[], Any]) -> list[list[float]]:
    """Time each of ``runs`` in turn, ``times`` times over."""
    return [[seconds(run, barrier) for run in runs] for _ in range(times)]
