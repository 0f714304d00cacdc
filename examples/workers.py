"""A master and its workers: tasks of uneven length, each for the worker that is free first.

    python -m mpixla run -n 4 examples/workers.py --save workers.png
    python -m mpixla run -n 4 examples/workers.py --size 320 --tile 20

Two pendulums hang one from the other, of equal masses and lengths. They are let go at two angles. How long does it take
until one of them goes over the top? That is asked for many pairs of angles, the pixels of a picture, which is cut into
tiles. Where the pendulums have not enough energy, they never do, and are followed to the end; elsewhere a tile is done
as soon as all of its pendulums have gone over the top. So the tasks are of uneven length, and nobody knows it before.

Rank 0 is the master. It hands out tiles, waits for whichever worker has finished one, and sends it the next. A worker
is one compiled loop that goes on until there are no more. The tag of a message is the number of the tile. On a single
rank the master does the work itself.

Of mpixla this shows recv() from MPI.ANY_SOURCE with a status, ranks and tags that are known only at run time, and
send() and recv() inside a while_loop.
"""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import showing
from mpi4py import MPI

import mpixla

Array = Any
COMM = MPI.COMM_WORLD
MASTER, NO_MORE = 0, -1
DT = 0.02  # in units of the square root of length / gravity


class Task(NamedTuple):
    """A tile that was computed: which, by whom, and when, in seconds."""

    tile: int
    rank: int
    begin: float
    end: float


def rates(state: Array) -> Array:
    """Return the changes of both angles and both angular speeds."""
    a, b, u, v = state
    below = 3 - jnp.cos(2 * (a - b))
    du = -3 * jnp.sin(a) - jnp.sin(a - 2 * b) - 2 * jnp.sin(a - b) * (v**2 + u**2 * jnp.cos(a - b))
    dv = 2 * jnp.sin(a - b) * (2 * u**2 + 2 * jnp.cos(a) + v**2 * jnp.cos(a - b))
    return jnp.stack([u, v, du / below, dv / below])


class Tiles:
    """The picture: size x size pairs of angles from -pi to pi, in tiles of tile x tile."""

    def __init__(self, size: int, tile: int, steps: int) -> None:
        self.size, self.tile, self.steps = size, tile, steps
        self.in_a_row = size // tile
        self.number = self.in_a_row**2

    def compute(self, number: Array) -> Array:
        """Return when the pendulums of a tile first go over the top, or infinity."""
        first = jnp.stack([number // self.in_a_row, number % self.in_a_row]) * self.tile
        pixels = first[:, None] + jnp.arange(self.tile) + 0.5
        angles = (2 * pixels / self.size - 1) * jnp.pi
        b, a = jnp.meshgrid(*angles, indexing="ij")

        def go_on(carry: Any) -> Array:
            step, _, when = carry
            return (step < self.steps) & jnp.isinf(when).any()

        def advance(carry: Any) -> Any:  # Runge and Kutta's step
            step, state, when = carry
            k1 = rates(state)
            k2 = rates(state + DT / 2 * k1)
            k3 = rates(state + DT / 2 * k2)
            state = state + DT / 6 * (k1 + 2 * k2 + 2 * k3 + rates(state + DT * k3))
            is_over = (abs(state[:2]) > jnp.pi).any(0) & jnp.isinf(when)
            return step + 1, state, jnp.where(is_over, (step + 1) * DT, when)

        begin = 0, jnp.stack([a, b, 0 * a, 0 * b]), jnp.full_like(a, jnp.inf)
        return jax.lax.while_loop(go_on, advance, begin)[2]


def work(tiles: Tiles) -> None:
    """Compute the tiles that the master sends, until it has no more."""

    @jax.jit
    def loop() -> Array:
        def body(carry: Any) -> Any:
            number, done = carry
            mpixla.send(tiles.compute(number), dest=MASTER, tag=number)
            return mpixla.recv(number, source=MASTER), done + 1

        first = mpixla.recv(jnp.int32(0), source=MASTER)
        return jax.lax.while_loop(lambda carry: carry[0] != NO_MORE, body, (first, 0))[1]

    compiled = loop.lower().compile()
    COMM.Barrier()  # all are ready
    compiled().block_until_ready()


def hand_out(tiles: Tiles) -> tuple[np.ndarray, list[Task]]:
    """Return the whole picture, and who has computed which tile, in the order in which they came in."""
    status = MPI.Status()

    @mpixla.jit
    def send(number: Array, worker: Array) -> None:
        mpixla.send(number, dest=worker)

    @jax.jit
    def receive() -> Array:
        template = jnp.zeros((tiles.tile, tiles.tile))
        return mpixla.recv(template, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)

    receive = receive.lower().compile()
    compute = jax.jit(tiles.compute)
    whole = np.empty((tiles.in_a_row, tiles.in_a_row, tiles.tile, tiles.tile), np.float32)
    tasks: list[Task] = []
    left = iter(range(tiles.number))
    begins = {}
    send(jnp.int32(NO_MORE), jnp.int32(MPI.PROC_NULL))  # goes nowhere, but compiles
    if COMM.size == 1:
        compute(0).block_until_ready()
    COMM.Barrier()
    start = time.perf_counter()

    def give(worker: int) -> None:
        begins[worker] = time.perf_counter() - start
        send(jnp.int32(next(left, NO_MORE)), jnp.int32(worker))

    for worker in range(1, COMM.size):
        give(worker)
    for task in showing.progress(range(tiles.number), "tiles"):
        if COMM.size == 1:
            begins[MASTER] = time.perf_counter() - start
            picture, number, worker = np.asarray(compute(task)), task, MASTER
        else:
            picture = np.asarray(receive())  # the status is filled when the result is there
            number, worker = status.Get_tag(), status.Get_source()
        tasks.append(Task(number, worker, begins[worker], time.perf_counter() - start))
        whole[divmod(number, tiles.in_a_row)] = picture
        if COMM.size > 1:
            give(worker)
    return whole.transpose(0, 2, 1, 3).reshape(tiles.size, tiles.size), tasks


def draw(pyplot: Any, tiles: Tiles, picture: np.ndarray, tasks: list[Task]) -> None:
    figure = pyplot.gcf()
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1, 1.4])
    extent = (-180, 180, -180, 180)
    image = left.imshow(picture, "magma_r", origin="lower", extent=extent)
    figure.colorbar(image, orientation="horizontal", label=r"until one is over the top / $\sqrt{l/g}$")
    left.set(ylabel="second angle / degrees")
    workers = sorted({task.rank for task in tasks})
    colours = {rank: f"C{i}" for i, rank in enumerate(workers)}
    edge = 360 / tiles.in_a_row
    for tile, rank, begin, end in tasks:
        row, column = divmod(tile, tiles.in_a_row)
        place = (column * edge - 180, row * edge - 180)
        middle.add_patch(pyplot.Rectangle(place, edge, edge, facecolor=colours[rank], edgecolor="white", linewidth=0.5))
        right.barh(workers.index(rank), end - begin, left=begin, color=colours[rank], edgecolor="white", linewidth=0.3)
    middle.set(title="who has computed it", aspect="equal", xlim=(-180, 180), ylim=(-180, 180))
    left.set(title="two pendulums (white: never)")
    for axis in (left, middle):
        axis.set(xlabel="first angle / degrees", xticks=range(-180, 181, 90), yticks=range(-180, 181, 90))
    shown = tasks[-1].end / 4
    right.set(title="and when: the first quarter", xlabel="time / s", xlim=(0, shown), yticks=range(len(workers)))
    right.set_yticklabels([f"rank {rank}" for rank in workers])


def main() -> None:
    parser = showing.Parser(__doc__)
    parser.add_argument("--size", type=int, default=160, help="pixels along each side of the picture")
    parser.add_argument("--tile", type=int, default=10, help="pixels along each side of a tile")
    parser.add_argument("--time", type=float, default=30, help="for how long pendulums are followed")
    parser.takes_picture()
    parser.takes_data()
    options = parser.parse()
    if options.tile < 1 or options.size < 1 or options.size % options.tile:
        parser.error(
            f"--size {options.size}: it is cut into tiles of {options.tile} pixels. Take a multiple of --tile."
        )
    tiles = Tiles(options.size, options.tile, round(options.time / DT))
    if COMM.rank != MASTER:
        work(tiles)
        return
    picture, tasks = hand_out(tiles)
    lengths = [task.end - task.begin for task in tasks]
    print(
        f"{len(tasks)} tiles in {tasks[-1].end:.1f} s, of {1e3 * min(lengths):.0f} to {1e3 * max(lengths):.0f} ms each"
    )
    for rank in sorted({task.rank for task in tasks}):
        own = [task.end - task.begin for task in tasks if task.rank == rank]
        print(f"rank {rank}: {len(own)} tiles, busy for {sum(own):.1f} s")
    showing.keep(options.data, picture=picture, tile=[t.tile for t in tasks], rank=[t.rank for t in tasks])
    showing.draw(options.save, lambda pyplot: draw(pyplot, tiles, picture, tasks), figsize=(12, 4.2))


if __name__ == "__main__":
    main()
