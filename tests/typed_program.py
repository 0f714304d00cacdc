"""A user's program, for `mypy --strict` and pyright (`make check`): what is wrong is marked, and must be found."""

from typing import NamedTuple, assert_type

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

import mpixla


class State(NamedTuple):
    u: jax.Array
    v: jax.Array


@mpixla.jit
def step(state: State, dt: float, *, damped: bool = False) -> State:
    total = mpixla.allreduce(state, MPI.SUM)
    return State(state.u + dt * total.u, state.v if damped else total.v)


@mpixla.jit(static_argnums=1)
def repeated(x: jax.Array, times: int) -> jax.Array:
    return mpixla.allreduce(x, MPI.SUM) * times


def main() -> None:
    x = jnp.ones(3)
    state = State(x, x)
    assert_type(step(state, 0.1, damped=True), State)
    assert_type(repeated(x, 2), jax.Array)
    step.lower(state, 0.1)
    step.clear_cache()
    assert_type(mpixla.allreduce(x, MPI.SUM), jax.Array)
    assert_type(mpixla.allreduce(1.0, MPI.SUM), jax.Array)
    assert_type(mpixla.allreduce(np.ones(3), MPI.SUM), jax.Array)
    assert_type(mpixla.allreduce(state, op=MPI.SUM), State)
    assert_type(mpixla.pvary({"w": x}), dict[str, jax.Array])
    assert_type(mpixla.pvary(2), jax.Array)
    assert_type(mpixla.bcast([x, x], 0), list[jax.Array])
    assert_type(mpixla.bcast(x, 0), jax.Array)
    assert_type(mpixla.assert_replicated(state), State)
    assert_type(mpixla.vdot(state, state), jax.Array)
    assert_type(mpixla.norm(state, "rms"), jax.Array)
    mpixla.norm(state, jnp.inf, cotangent="varying")

    request = mpixla.iallreduce(state, MPI.SUM)
    assert_type(request, mpixla.Request[State])
    assert_type(mpixla.wait(request), State)
    assert_type(mpixla.wait(mpixla.ibcast(x, 0)), jax.Array)
    assert_type(mpixla.overlap(mpixla.ibcast(x, 0), step, state, 0.1), tuple[jax.Array, State])
    assert_type(mpixla.overlap([mpixla.ibcast(x, 0)], jnp.sin, x), tuple[list[jax.Array], jax.Array])
    assert_type(mpixla.waitall([mpixla.irecv(x, 0), mpixla.isend(x, 0)]), list[jax.Array])
    assert_type(mpixla.wait(mpixla.isendrecv(x, state, 0, dest=jnp.int32(0))), State)
    assert_type(mpixla.sendrecv(x, state, 0, mpixla.Shift(0, 1)), State)
    assert_type(mpixla.sendrecv(x, x, source=0, dest=0, sendtag=1, status=MPI.Status()), jax.Array)
    assert_type(mpixla.recv(x, MPI.ANY_SOURCE), jax.Array)
    assert_type(mpixla.shift(x, -1, dimension=0), jax.Array)
    assert_type(mpixla.shift(state, 1), State)
    assert_type(mpixla.rank(MPI.COMM_WORLD), jax.Array)
    assert_type(mpixla.size(), int)
    assert_type(mpixla.hashable_comm(), MPI.Intracomm)
    assert_type(mpixla.error_of(ValueError()), mpixla.MPIError | None)
    with mpixla.default_comm(MPI.COMM_SELF):
        step(state, 0.1)
    template: jax.ShapeDtypeStruct = jax.eval_shape(jnp.zeros_like, x)
    assert_type(mpixla.sendrecv(x, template, 0, 0), jax.Array)
    assert_type(mpixla.recv(template, tag=1, return_status=True), tuple[jax.Array, mpixla.MessageStatus])
    assert_type(mpixla.sendrecv(x, state, 0, 0, return_status=True), tuple[State, mpixla.MessageStatus])
    receiving = mpixla.irecv(template, 0)
    assert_type(receiving.wait(), jax.Array)
    assert_type(receiving.wait(return_status=True)[1].source, jax.Array)
    assert_type(mpixla.wait(receiving, return_status=True), tuple[jax.Array, mpixla.MessageStatus])
    assert_type(mpixla.ireduce(state, MPI.SUM, 0).wait(), State)
    assert_type(mpixla.iallgather(x), mpixla.Request[jax.Array])
    assert_type(mpixla.ibarrier(), mpixla.Request[None])
    assert_type(mpixla.alltoallv(state, x, capacity=3), tuple[State, jax.Array])
    assert_type(mpixla.alltoallv(state, [1], [1]), State)
    assert_type(mpixla.allgatherv(x, [3]), jax.Array)
    assert_type(mpixla.gatherv(x, 3, 0, capacity=3, template=x), tuple[jax.Array, jax.Array])
    assert_type(mpixla.scatterv(state, [3], root=0), State)
    assert_type(mpixla.allgather(x, axis=-1, tiled=True), jax.Array)
    assert_type(mpixla.alltoall(state, split_axis=0, concat_axis=0), State)
    assert_type(mpixla.reduce_scatter(x, MPI.SUM, tiled=True), jax.Array)
    assert_type(mpixla.reduce(state, MPI.SUM, 0), State)
    assert_type(mpixla.scan(x, MPI.SUM), jax.Array)
    assert_type(mpixla.exscan(2.0, op=MPI.SUM), jax.Array)
    assert_type(mpixla.gather(x, 0), jax.Array)
    assert_type(mpixla.scatter(state, root=0), State)
    assert_type(mpixla.fsum(x, axis=0), jax.Array)
    assert_type(mpixla.ragged_all_to_all(x, x, [0], [1], [0], [1]), jax.Array)
    line = MPI.COMM_SELF.Create_cart([1])
    assert_type(mpixla.wait(mpixla.halo_start(state, line)), State)
    assert_type(mpixla.halo_exchange(state, line), State)
    assert_type(mpixla.neighbor_allgather(x, comm=line), jax.Array)
    assert_type(mpixla.neighbor_alltoall(state, comm=line), State)
    assert_type(mpixla.neighbor_alltoallv(x, [1, 2], comm=line, capacity=3), tuple[jax.Array, jax.Array])
    assert_type(mpixla.hashable_comm(line), MPI.Cartcomm)

    step(state)  # type: ignore[call-arg]
    step("state", 0.1)  # type: ignore[arg-type]
    repeated(x, times="2")  # type: ignore[arg-type]
    mpixla.allreduce(x, "sum")  # type: ignore[call-overload]
    mpixla.bcast(x, 0, cotangent="twice")  # type: ignore[call-overload]
    mpixla.norm(x, cotangent="twice")  # type: ignore[arg-type]
    mpixla.wait(x)  # type: ignore[call-overload]
    mpixla.send(x, "0")  # type: ignore[arg-type]
    mpixla.sendrecv(x, x, 0, 0, recvtag="1")  # type: ignore[call-overload]
    mpixla.isendrecv(x, x, 0, 0, status=MPI.Status())  # type: ignore[call-overload]
    mpixla.alltoallv(x)  # type: ignore[call-overload]
    mpixla.recv(x, status=MPI.Status(), return_status=True)  # type: ignore[call-overload]
    mpixla.send(template, 0, tag="1")  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
