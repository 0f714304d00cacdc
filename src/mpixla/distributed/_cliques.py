"""Communicators for XLA's collectives, made by their members before a program first runs.

XLA calls the devices of one collective a clique, and asks MPI for its communicator in the middle of the first program
that needs it, by a call that all processes of the job would have to make. So each program is inspected before it first
runs. The members of a clique without a communicator first meet, within a time limit, and then create it. Finally a
program with nothing but a sum over these devices makes XLA ask for the communicator.
"""

import ctypes
import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from mpi4py import MPI

from ..base import settings
from ..extend import abort_job, comm_of, lib, require_hook, when_done
from . import _first_run, _trampoline
from ._collectives import Collective, collectives_of

_LIMIT = 300.0  # seconds, where MPIXLA_TIMEOUT is not set
_INT_MAX = 2**31 - 1
_TYPES = {"pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "f32", "f64", "c64", "c128"}

# The library that jaxlib has loaded, which XLA takes communicators from.
_offers = ctypes.CDLL(str(_trampoline.LIBRARY))
_offers.mpixla_trampoline_offer.argtypes = (ctypes.c_int64, ctypes.c_int, ctypes.c_int)

_opened: set[tuple[int, ...]] = set()
_channel: Any = None  # the communicator for meetings, and for the messages of ranks that have ended
_END = 32767  # the tag of a rank's last message: the greatest tag that every MPI has
_NOTHING = np.zeros(0)

# A lock for each clique: ranks may open cliques in different orders, in different threads, so no thread may wait for
# another rank while it blocks the threads that open other cliques.
_opening: dict[tuple[int, ...], threading.Lock] = {}
# Held while a communicator is offered to XLA, which asks with the first device and this process's place alone: two
# cliques may have the same.
_offering = threading.Lock()
_asking = threading.local()  # `now` is True in the thread that makes XLA ask for a communicator


def install() -> None:
    """Install the hook that makes cliques' communicators before a program first runs. All ranks must call it."""
    global _channel
    _channel = MPI.COMM_WORLD.Dup()
    require_hook(_first_run, "mpixla.distributed", _open_cliques)
    lib.mpixla_calls_apart()
    when_done.append(_wait_for_all_ends)
    # A program may call MPI.Finalize, which deletes this attribute first of all.
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_wait_for_all_ends), None)


_end_is_said: list[MPI.Request] = []


def _wait_for_all_ends(*_: object) -> None:
    """Tell all other ranks that this one has ended its program, and wait until all have; later calls return at once.

    A rank that waits for this one in a collective is reported by the time limit's thread, as in mpixla's operations
    (native/watch/deadline.c); a rank that waits for it before a program sees the message in ``_wait_for_ranks``.
    """
    others = set(range(_channel.Get_size())) - {_channel.Get_rank()}
    if _end_is_said or not others:
        return
    lib.mpixla_timeout_left()
    _end_is_said.extend(_channel.Isend(_NOTHING, other, _END) for other in others)
    all_have_come = _channel.Ibarrier()
    while not all_have_come.Test():
        time.sleep(0.002)
    for other in others:
        _channel.Recv(_NOTHING, other, _END)
    MPI.Request.Waitall(_end_is_said)


def _open_cliques(executable: Any, devices: Sequence[Any]) -> None:
    """Make communicators for a CPU program's collectives, collectively; NotImplementedError if MPI cannot carry one."""
    if devices[0].platform != "cpu" or getattr(_asking, "now", False):
        return
    found = [c for module in executable.hlo_modules() for c in collectives_of(module.to_string(), len(devices))]
    if not found:
        return
    processes = [device.process_index for device in devices]
    if len(set(processes)) < len(processes):
        raise NotImplementedError(
            f"A program is sharded over {len(processes)} devices of {len(set(processes))} processes, but over MPI a "
            "process communicates for one device. Start one process per device (and leave jax_num_cpu_devices and "
            "--xla_force_host_platform_device_count alone)."
        )
    for collective in found:
        refuse_where_mpi_cannot(collective)
    rank = MPI.COMM_WORLD.Get_rank()
    mine = {group for c in found for group in c.groups if rank in [processes[place] for place in group]}
    for group in sorted(mine, key=lambda group: [processes[place] for place in group]):
        _open_clique(tuple(devices[place] for place in group))


def refuse_where_mpi_cannot(collective: Collective) -> None:
    """Raise NotImplementedError for a collective whose dtype XLA cannot pass to MPI, or with too many items for an int.

    XLA has MPI datatypes for few of its types, and passes counts as ints, in bytes for all collectives but reductions.
    """
    is_reduction = collective.operation in ("all-reduce", "reduce-scatter")
    if (is_reduction or collective.operation == "all-gather") and collective.dtype not in _TYPES:
        raise NotImplementedError(
            f"XLA's {collective.operation} over MPI does not take its type {collective.dtype} (in which JAX's float16 "
            "and 8-bit floats are reduced and gathered). Convert to float32 or bfloat16, or use mpixla's operations "
            "inside jax.shard_map, which take all types of 8 bits and more."
        )
    item = 1 if is_reduction else _item_size(collective.dtype)
    if collective.items * item > _INT_MAX:
        raise NotImplementedError(
            f"XLA's {collective.operation} in this program is of {collective.items} items of {collective.dtype} on "
            f"each process, and hands MPI at most {_INT_MAX} {'items' if is_reduction else 'bytes'} in one call. Split "
            "the array, or use mpixla's operations, which have no such limit."
        )


def _item_size(dtype: str) -> int:
    bits = "".join(c if c.isdigit() else " " for c in dtype).split()
    return max(1, int(bits[0]) // 8) if bits else 1


def _open_clique(devices: tuple[Any, ...]) -> None:
    """Make XLA's communicator for these devices; later calls return at once. Collective over the devices' processes."""
    key = tuple(device.id for device in devices)
    with _opening.setdefault(key, threading.Lock()):
        if key in _opened:
            return
        ranks = [device.process_index for device in devices]
        _wait_for_ranks(ranks)
        everyone = _channel.Get_group()
        group = everyone.Incl(ranks)
        comm = _channel.Create_group(group, _message_tag(ranks))
        for made in (group, everyone):
            made.Free()
        shown = ", ".join(map(str, ranks[:8]))
        comm.Set_name(f"JAX's, ranks {shown}{', ...' if len(ranks) > 8 else ''}")
        _offer_communicator(comm, devices)
        _opened.add(key)


def _offer_communicator(comm: MPI.Intracomm, devices: tuple[Any, ...]) -> None:
    """Make XLA use a communicator for its collectives on these devices, collectively; RuntimeError if it does not."""
    offers = _offers.mpixla_trampoline_offers
    failed: list[Exception] = []
    thread = threading.Thread(target=_make_xla_ask, args=(devices, failed), name="mpixla clique", daemon=True)
    with _offering:
        before = offers()
        if _offers.mpixla_trampoline_offer(comm_of(comm).id, devices[0].id, comm.Get_rank()) != 0:
            raise RuntimeError("XLA has left too many communicators that mpixla made for its collectives: report it.")
        thread.start()
        while offers() > before and thread.is_alive():
            time.sleep(1e-4)
        is_taken = offers() == before
    thread.join()
    if failed or not is_taken:
        raise RuntimeError(
            f"XLA did not take the communicator that mpixla made for its collectives over {len(devices)} processes. "
            "This JAX is not one that mpixla was tested with for that: report it to mpixla."
        ) from (failed[0] if failed else None)


def _make_xla_ask(devices: tuple[Any, ...], failed: list[Exception]) -> None:
    """Run a sum over these devices, so that XLA asks for their communicator; append an exception to ``failed``."""
    _asking.now = True
    mesh = Mesh(np.array(devices), "clique")
    spec = PartitionSpec("clique")

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=spec, out_specs=PartitionSpec(), check_vma=False)
    def count_members(x: Any) -> Any:  # for one device XLA leaves out a psum
        return jnp.sum(jax.lax.all_gather(x, "clique"))

    try:
        with jax.transfer_guard("allow"):  # the arrays are not the program's
            ones = jax.make_array_from_process_local_data(NamedSharding(mesh, spec), np.ones(1, np.float32))
            count = int(count_members(ones).addressable_data(0))
        if count != len(devices):
            raise RuntimeError(f"The sum of ones over {len(devices)} processes was {count}.")
    except Exception as e:
        failed.append(e)


def _message_tag(ranks: Sequence[int]) -> int:
    return hash(tuple(ranks)) % 30000  # Python's hash of integers is the same in every process


def _wait_for_ranks(ranks: Sequence[int]) -> None:
    """Wait until all these ranks are here; after the time limit, end the job and name the missing ranks.

    A missing rank may be compiling, or may never come.
    """
    rank, first = MPI.COMM_WORLD.Get_rank(), ranks[0]
    limit = settings.time_limit(otherwise=_LIMIT) or math.inf
    tag = _message_tag(ranks)
    others = [r for r in ranks if r != first] if rank == first else [first]
    waiting = {r: _channel.Irecv(_NOTHING, r, tag) for r in others}
    if rank != first:
        said = _channel.Isend(_NOTHING, first, tag)
        limit += 5  # the first rank knows all missing ranks, and reports them
    end, pause = time.monotonic() + limit, 0.0
    while waiting:
        waiting = {r: request for r, request in waiting.items() if not request.Test()}
        if waiting and time.monotonic() > end:
            _end_job(ranks, list(waiting), f"has waited for {limit:g} s", f". {settings.TIMEOUT} sets the limit")
        if gone := [r for r in waiting if _channel.Iprobe(r, _END)]:
            _end_job(ranks, gone, "waits", ": it has come to the end of its script")
        time.sleep(pause)
        pause = min(pause + 1e-5, 0.01)
    if rank == first:
        for other in others:
            _channel.Send(_NOTHING, other, tag)
    else:
        said.Wait()


def _end_job(ranks: Sequence[int], missing: Sequence[int], waits: str, why: str) -> None:
    """Abort the job with a message that names the ranks that have not come to run a sharded program."""
    who = f"ranks {', '.join(map(str, missing))} have" if len(missing) > 1 else f"rank {missing[0]} has"
    abort_job(
        f"mpixla: rank {MPI.COMM_WORLD.Get_rank()} {waits} to run a program that is sharded over the ranks "
        f"{', '.join(map(str, ranks))}, but {who} not come to run it, so the whole job ends. All these ranks must run "
        f"it{why}."
    )
