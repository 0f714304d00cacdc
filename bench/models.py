"""The models that are compared.

    own            examples/shallow_water.py
    own-alone      the same without its exchanges: each rank computes as if the others were not there
    own-barrier    the same with a barrier for each exchange: the ranks wait for each other, and move nothing
    peer           mpi4jax's example as it is, with the library that measures (mpi4jax, or mpixla in its place)
    peer-halo      the same model, each of its exchanges one mpixla.halo_exchange
    peer-alone     the same without its exchanges
    heat           examples/overlap.py, in its blocking form
    heat-overlap   the same in its overlapped form

mpi4jax's example is read from its source distribution and run as it is, but for the size of its grid, and as it runs
itself: one step of another kind, then a jitted loop of some steps, again and again.
"""

import importlib.util
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from mpi4py import MPI

Model = tuple[Callable[[Any], Any], Callable[[], Any]]  # from a state to one some steps later; the state at the start
EXAMPLES = Path(__file__).parents[1] / "examples"
_NO_PEER = "mpi4jax's source distribution, which has its example, could not be downloaded"


def make(name: str, library: Any, peer: Path | None, ny: int, nx: int, chunk: int) -> Model:
    """Return the model ``name`` on ``ny`` times ``nx`` cells, which takes ``chunk`` steps at a time.

    Args:
        name: one of those above.
        library: the module whose operations it uses.
        peer: mpi4jax's example, or None where it is not there.
        ny: cells from south to north.
        nx: cells from west to east.
        chunk: time steps in a call.

    Returns:
        The function that takes the steps, and one that gives the state to start from.

    Raises:
        FileNotFoundError: if mpi4jax's example is needed and not there.
        RuntimeError: if mpi4jax's example does not set its size as we know it.
    """
    family, _, variant = name.partition("-")
    if family == "own":
        return _own(library, ny, nx, chunk, variant)
    if family == "heat":
        return _heat(ny, nx, chunk, overlapped=variant == "overlap")
    if peer is None:
        raise FileNotFoundError(_NO_PEER)
    return _peer(variant, library, peer, ny, nx, chunk)


def time_compilation(name: str, library: Any, peer: Path | None, ny: int, nx: int, chunk: int) -> float:
    """Seconds to trace, lower and compile the loop of a variant of mpi4jax's example, a new one for each call."""
    if peer is None:
        raise FileNotFoundError(_NO_PEER)
    model, begin = _peer_model(name.partition("-")[2], library, peer, ny, nx)
    started = time.perf_counter()
    model["do_multistep"].lower(begin, chunk).compile()
    return time.perf_counter() - started


def _example(name: str, copy: str = "") -> Any:
    """Return the module of one of our examples, a new one for each ``copy``."""
    spec = importlib.util.spec_from_file_location(name + copy, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    model = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = model  # dataclasses look there
    spec.loader.exec_module(model)
    return model


def _heat(ny: int, nx: int, chunk: int, *, overlapped: bool) -> Model:
    model = _example("overlap")
    advance = (model.make_overlapped if overlapped else model.make_blocking)(MPI.COMM_WORLD)
    begin = model.start(MPI.COMM_WORLD, ny, nx)
    jax.block_until_ready(advance(begin, chunk))  # compiles
    return lambda state: advance(state, chunk), lambda: begin


def _own(library: Any, ny: int, nx: int, chunk: int, variant: str) -> Model:
    model = _example("shallow_water", variant)

    def only_wait(fields: Any, cart: Any) -> Any:
        library.barrier(comm=cart)
        return fields

    if variant:
        exchange = {"alone": lambda fields, cart: fields, "barrier": only_wait}[variant]
        model.mpixla = types.SimpleNamespace(halo_exchange=exchange)
    block = model.decompose(MPI.COMM_WORLD, ny, nx)
    advance = model.make_advance(block)
    return lambda state: advance(state, chunk), lambda: jax.block_until_ready(advance(model.start(block), 0))


def _peer_model(variant: str, library: Any, path: Path, ny: int, nx: int) -> tuple[dict[str, Any], Any]:
    """Return the names of mpi4jax's example, executed anew, and its state after the first step."""
    text = path.read_text()
    for line, replacement in (
        ("nx_global = 360 + 2", f"nx_global = {nx} + 2"),
        ("ny_global = 180 + 2", f"ny_global = {ny} + 2"),
    ):
        if text.count(line) != 1:
            raise RuntimeError(f"mpi4jax's example has no line '{line}' any more; tell bench/models.py its new form")
        text = text.replace(line, replacement)
    sys.modules["mpi4jax"] = library
    model: dict[str, Any] = {"__name__": "peer"}
    exec(compile(text, path.name, "exec"), model)
    if variant:
        model["enforce_boundaries"] = _boundaries(variant, library, model)

    fields = model["get_initial_conditions"]()
    zeros = (jnp.zeros((model["ny_local"], model["nx_local"])) for _ in range(3))
    return model, jax.block_until_ready(model["shallow_water_step"](model["ModelState"](*fields, *zeros), True))


def _peer(variant: str, library: Any, path: Path, ny: int, nx: int, chunk: int) -> Model:
    model, begin = _peer_model(variant, library, path, ny, nx)
    advance = model["do_multistep"]
    jax.block_until_ready(advance(begin, chunk))  # compiles
    return lambda state: advance(state, chunk), lambda: begin


def _boundaries(variant: str, library: Any, model: dict[str, Any]) -> Callable[[Any, str], Any]:
    """Replace the example's exchange of an array's borders; like it, stop the flow at the northern wall."""
    rows, columns = model["nproc_y"], model["nproc_x"]
    cart = MPI.COMM_WORLD.Create_cart((rows, columns), periods=(False, True))

    def boundaries(array: Any, grid: str) -> Any:
        if variant == "halo":
            array = library.halo_exchange(array, cart)
        if grid == "v" and model["proc_idx"][0] == rows - 1:
            array = array.at[-2].set(0)
        return array

    return boundaries
