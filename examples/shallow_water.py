"""A jet that breaks into eddies: the nonlinear shallow-water equations on several processes.

    python -m mpixla run -n 2 examples/shallow_water.py --save jet.gif --save jet.png
    python -m mpixla run -n 2 examples/shallow_water.py --benchmark --size 1800 3600 --days 0.1

The first takes about 20 seconds on two cores.

Solved are, for the surface's height eta and the velocity (u, v) of a layer of thickness h = depth + eta,

    d(eta)/dt = - d(h u)/dx - d(h v)/dy
    du/dt     = + q h v - dB/dx + nu laplace(u)       q = (f + dv/dx - du/dy) / h   potential vorticity
    dv/dt     = - q h u - dB/dy + nu laplace(v)       B = g eta + (u^2 + v^2) / 2   Bernoulli function

on a beta plane, periodic in x, with free-slip walls in the south and the north.

The grid is an Arakawa C-grid: eta is in the middle of a cell, u on its eastern face, v on its northern face, q at its
north-eastern corner. Arrays are indexed [y, x]. Each process has one block of cells and around it a halo of width one,
which is filled from the neighbours once in a time step. All time steps between two pictures are one jax.jit.

Of mpixla this shows halo_exchange() inside a compiled loop, on a Cartesian communicator, and gather().
"""

import argparse
import importlib.util
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from mpi4py import MPI

import mpixla

DX = DY = 5e3  # m
GRAVITY = 9.81  # m/s²
DEPTH = 100.0  # m
CORIOLIS, BETA = 2e-4, 2e-11  # 1/s, at the southern wall; 1/(m s)
VISCOSITY = 1e-3 * CORIOLIS * DX**2  # m²/s
DT = 0.125 * min(DX, DY) / (GRAVITY * DEPTH) ** 0.5  # s

JET_SPEED, JET_WIDTH = 10.0, 40e3  # m/s, m
DAY = 86400.0  # s
CHUNKS = 48  # of time steps: one picture or update of the progress bar each


class Fields(NamedTuple):
    """The model's variables, or how fast they change."""

    eta: Any
    u: Any
    v: Any


State = tuple[Fields, Fields]  # the fields, with halos, and the tendencies of the step before
Initial = Callable[["Block"], Fields]
Advance = Callable[[State, int], State]


# Domain decomposition.


@dataclass(frozen=True)
class Block:
    """The cells of this process: some rows and columns of a domain of ny times nx cells."""

    cart: MPI.Cartcomm
    ny: int
    nx: int

    @property
    def cells(self) -> tuple[slice, slice]:
        return self.cells_of(self.cart.rank)

    def cells_of(self, rank: int) -> tuple[slice, slice]:
        (py, px), (y, x) = self.cart.dims, self.cart.Get_coords(rank)
        return share(self.ny, py, y), share(self.nx, px, x)


def share(n: int, parts: int, index: int) -> slice:
    """Return part ``index`` of ``n`` cells. The lengths of the parts differ by one at most."""
    return slice(n * index // parts, n * (index + 1) // parts)


def process_grid(size: int, ny: int, nx: int) -> tuple[int, int]:
    """Return the numbers of processes in y and x with the shortest halos."""
    grids = [(p, size // p) for p in range(size, 0, -1) if size % p == 0 and p <= ny and size // p <= nx]
    if not grids:
        raise ValueError(f"{size} processes cannot share {ny} x {nx} cells; use fewer processes or more cells.")
    return min(grids, key=lambda grid: (grid[0] - 1) * nx + (grid[1] if grid[1] > 1 else 0) * ny)


def decompose(comm: MPI.Intracomm, ny: int, nx: int) -> Block:
    return Block(comm.Create_cart(process_grid(comm.size, ny, nx), periods=(False, True)), ny, nx)


def fill_halo(block: Block, fields: Fields) -> Fields:
    """Fill the halo: from the neighbours; at walls eta and u go on unchanged (free slip), and v vanishes."""
    fields = mpixla.halo_exchange(fields, block.cart)
    south, north = block.cart.Shift(0, 1)
    for wall, halo, first in ((south, 0, 1), (north, -1, -2)):
        if wall == MPI.PROC_NULL:
            eta, u, v = fields
            fields = Fields(eta.at[halo].set(eta[first]), u.at[halo].set(u[first]), v.at[halo].set(0))
    return fields


def gather(block: Block, fields: Fields) -> Fields | None:
    """Return the fields of the whole domain, as NumPy arrays on rank 0."""
    # Blocks may differ by a row or column, but gather() takes arrays of one shape: that of the largest block.
    py, px = block.cart.dims
    own = np.zeros((3, -(-block.ny // py), -(-block.nx // px)), fields.eta.dtype)
    ny, nx = fields.eta.shape
    own[:, : ny - 2, : nx - 2] = [f[1:-1, 1:-1] for f in fields]
    blocks = np.asarray(mpixla.gather(own, root=0, comm=block.cart))
    if block.cart.rank != 0:
        return None
    whole = np.empty((3, block.ny, block.nx), own.dtype)
    for rank, values in enumerate(blocks):
        rows, cols = block.cells_of(rank)
        whole[:, rows, cols] = values[:, : rows.stop - rows.start, : cols.stop - cols.start]
    return Fields(*whole)


# Physics.


def coriolis(rows: slice) -> np.ndarray:
    """Return the Coriolis parameter at the edges of these rows, from south to north."""
    return CORIOLIS + BETA * DY * np.arange(rows.start, rows.stop + 1)


def jet(block: Block, waves: float = 2.0) -> Fields:
    """Return an eastward jet in geostrophic balance, with waves of this amplitude (in m) on its surface."""
    y = DY * (np.arange(block.ny) + 0.5 - block.ny / 2)  # from the axis of the jet
    x = 2 * np.pi * (np.arange(block.nx) + 0.5) / block.nx
    u = JET_SPEED / np.cosh(y / JET_WIDTH) ** 2
    slope = -coriolis(slice(0, block.ny))[1:-1] * 0.5 * (u[1:] + u[:-1]) / GRAVITY
    eta = np.append(0, np.cumsum(DY * slope))
    eta -= eta.mean()
    envelope = waves * np.exp(-((y / JET_WIDTH) ** 2))
    pattern = np.sin(4 * x) + np.sin(5 * x + 1) + np.sin(6 * x + 3)

    rows, cols = block.cells
    eta = eta[rows, None] + envelope[rows, None] * pattern[cols]
    return Fields(eta, np.broadcast_to(u[rows, None], eta.shape), np.zeros(eta.shape))


def mean_x(a: jax.Array) -> jax.Array:
    return 0.5 * (a[:, 1:] + a[:, :-1])


def mean_y(a: jax.Array) -> jax.Array:
    return 0.5 * (a[1:] + a[:-1])


def diff_x(a: jax.Array) -> jax.Array:
    return (a[:, 1:] - a[:, :-1]) / DX


def diff_y(a: jax.Array) -> jax.Array:
    return (a[1:] - a[:-1]) / DY


def laplace(a: jax.Array) -> jax.Array:
    return diff_x(diff_x(a))[1:-1] + diff_y(diff_y(a))[:, 1:-1]


def tendencies(block: Block, fields: Fields) -> Fields:
    """Return how fast the fields change in the block's cells (Sadourny's scheme, which conserves energy).

    A mean or difference is one shorter and lies half a cell further; the slices choose what lies at the same place.
    """
    eta, u, v = fields
    rows, _ = block.cells
    h = DEPTH + eta
    hu, hv = mean_x(h) * u[:, :-1], mean_y(h) * v[:-1]
    f = jnp.asarray(coriolis(rows)[:, None], eta.dtype)
    q = (f + diff_x(v)[:-1] - diff_y(u)[:, :-1]) / mean_x(mean_y(h))
    bernoulli = GRAVITY * eta[1:, 1:] + 0.5 * (mean_x(u * u)[1:] + mean_y(v * v)[:, 1:])

    d_eta = -diff_x(hu)[1:-1] - diff_y(hv)[:, 1:-1]
    d_u = mean_y(q * mean_x(hv))[:, 1:] - diff_x(bernoulli)[:-1] + VISCOSITY * laplace(u)
    d_v = -mean_x(q * mean_y(hu))[1:] - diff_y(bernoulli)[:, :-1] + VISCOSITY * laplace(v)
    if rows.stop == block.ny:
        d_v = d_v.at[-1].set(0)  # the northern wall
    return Fields(d_eta, d_u, d_v)


# Time stepping.


def start(block: Block, initial: Initial = jet) -> State:
    """Return the state at the beginning. ``initial`` gives the fields in the block's cells."""

    @jax.jit
    def prepare(fields: Fields) -> State:
        fields = fill_halo(block, fields)
        return fields, tendencies(block, fields)  # with which the first time step is one of Euler's

    return prepare(Fields(*(jnp.pad(jnp.asarray(f), 1) for f in initial(block))))


def make_advance(block: Block) -> Advance:
    """Return a compiled function that takes a number of time steps (Adams-Bashforth)."""

    def step(_: int, state: State) -> State:
        fields, before = state
        now = tendencies(block, fields)
        # 1.5 and 0.5 would be of second order, but would let the shortest gravity waves grow.
        fields = jax.tree.map(lambda f, n, b: jnp.pad(f[1:-1, 1:-1] + DT * (1.6 * n - 0.6 * b), 1), fields, now, before)
        return fill_halo(block, fields), now

    return jax.jit(lambda state, steps: lax.fori_loop(0, steps, step, state), donate_argnums=0)


def simulate(comm: MPI.Intracomm, ny: int, nx: int, steps: int, initial: Initial = jet) -> Fields | None:
    """Run the model. Return the fields of the whole domain on rank 0, None elsewhere."""
    block = decompose(comm, ny, nx)
    fields, _ = make_advance(block)(start(block, initial), steps)
    return gather(block, fields)


# Pictures.


def velocity(fields: Fields) -> tuple[np.ndarray, np.ndarray]:
    """Return the velocity in the middle of the cells."""
    u = 0.5 * (fields.u + np.roll(fields.u, 1, axis=1))
    v = 0.5 * (fields.v + np.pad(fields.v, ((1, 0), (0, 0)))[:-1])
    return u, v


class Film:
    """Draws the fields and writes files: .gif and .mp4 of every picture, .png of the last one."""

    def __init__(self, files: list[Path], fields: Fields) -> None:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import animation, pyplot

        ny, nx = fields.eta.shape
        width, height = 1e-3 * DX * nx, 1e-3 * DY * ny
        self.figure, axes = pyplot.subplots(figsize=(9, min(1 + 7.2 * height / width, 12)), layout="compressed")
        limit = np.ceil(2.2 * np.abs(fields.eta).max())  # the eddies will be higher and lower than the jet's sides
        self.image = axes.imshow(
            fields.eta,
            clim=(-limit, limit),
            cmap=matplotlib.colormaps["RdBu_r"].resampled(40),  # smooth shades would make a .gif large
            interpolation="bilinear",
            origin="lower",
            extent=(0, width, 0, height),
        )
        self.figure.colorbar(self.image, label="sea surface height anomaly (m)", pad=0.02)
        every = max(1, round(max(ny, nx) / 45))
        self.sparse = (slice(every // 2, None, every),) * 2
        y, x = ((index[self.sparse] + 0.5) * 1e-3 * DX for index in np.indices((ny, nx)))
        self.arrows = axes.quiver(x, y, 0 * x, 0 * y, scale=250, width=0.0015, color="0.1")
        axes.quiverkey(self.arrows, 0.92, 1 + 0.018 * width / height, 10, "10 m/s", labelpos="E")
        axes.set(xlabel="x (km)", ylabel="y (km)")
        self.title = axes.set_title("", loc="left")

        self.pictures = [file for file in files if file.suffix == ".png"]
        kinds = {".gif": animation.PillowWriter, ".mp4": animation.FFMpegWriter}
        self.writers = {file: kinds[file.suffix](fps=12) for file in files if file.suffix in kinds}
        for file, writer in self.writers.items():
            writer.setup(self.figure, str(file), dpi=100)

    def draw(self, fields: Fields, days: float) -> None:
        self.image.set_data(fields.eta)
        self.arrows.set_UVC(*(a[self.sparse] for a in velocity(fields)))
        self.title.set_text(f"Shallow-water jet after {days:.1f} days")
        for writer in self.writers.values():
            writer.grab_frame()

    def finish(self) -> None:
        for writer in self.writers.values():
            writer.finish()
        for file in self.pictures:
            self.figure.savefig(file, dpi=150)


# The program.


class Parser(argparse.ArgumentParser):
    """Speaks on rank 0 only, and before any rank ends."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if MPI.COMM_WORLD.rank == 0:
            super()._print_message(message, file)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        self._print_message(message or "", sys.stderr)
        sys.stderr.flush()
        MPI.COMM_WORLD.Barrier()
        sys.exit(status)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def parse(comm: MPI.Intracomm) -> argparse.Namespace:
    parser = Parser(description="A shallow-water model with mpixla. Start it with python -m mpixla run.")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--benchmark", action="store_true", help="no output but the time of the time loop")
    output.add_argument(
        "--save", metavar="FILE", type=Path, action="append", default=[], help="write a .gif, .mp4 or .png (repeatable)"
    )
    parser.add_argument(
        "--size", metavar=("NY", "NX"), type=int, nargs=2, default=(180, 360), help="cells, by default 180 360"
    )
    parser.add_argument("--days", metavar="D", type=float, default=4.0, help="time to simulate, by default %(default)s")
    args = parser.parse_args()
    if min(args.size) < 1 or not 0 < args.days < np.inf:
        parser.error("--size and --days must be positive.")
    try:
        process_grid(comm.size, *args.size)
    except ValueError as error:
        parser.error(str(error))
    # What only rank 0 needs, only rank 0 may lack; all learn of it, so that all stop.
    problem = comm.bcast(problem_with(args) if comm.rank == 0 else None)
    if problem:
        parser.error(problem)
    return args


def problem_with(args: argparse.Namespace) -> str | None:
    """Return as a sentence why this process cannot show progress or save files."""
    needed = [] if args.benchmark else ["tqdm", *(["matplotlib", "PIL"] if args.save else [])]
    if not all(importlib.util.find_spec(module) for module in needed):
        return f"{', '.join(needed)} must be installed: pip install 'mpixla[demo]'."
    for file in args.save:
        if file.suffix not in (".gif", ".mp4", ".png"):
            return f"--save {file}: the name must end in .gif, .mp4 or .png."
        if file.suffix == ".mp4" and shutil.which("ffmpeg") is None:
            return f"--save {file}: .mp4 needs the program ffmpeg, which was not found; install it or save a .gif."
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.open("ab").close()
        except OSError as error:
            return f"--save {file}: the file cannot be written ({error.strerror})."
    return None


def benchmark(block: Block, advance: Advance, state: State, steps: int) -> None:
    block.cart.Barrier()
    begin = time.perf_counter()
    jax.block_until_ready(advance(state, steps))
    block.cart.Barrier()
    if block.cart.rank == 0:
        seconds = time.perf_counter() - begin
        print(f"{seconds:.3f} s for {steps} time steps of {block.ny} x {block.nx} cells, {block.cart.size} process(es)")


def run(block: Block, advance: Advance, state: State, steps: int, files: list[Path]) -> None:
    begin = time.perf_counter()
    first = gather(block, state[0])
    film = bar = None
    if first:  # on rank 0
        from tqdm import tqdm

        bar = tqdm(total=steps, unit=" steps")
        if files:
            film = Film(files, first)
            film.draw(first, days=0)
    done = np.linspace(0, steps, min(steps, CHUNKS) + 1).astype(int).tolist()
    for last, now in pairwise(done):
        state = jax.block_until_ready(advance(state, now - last))
        if files or now == steps:
            fields = gather(block, state[0])
        if film:
            film.draw(fields, days=now * DT / DAY)
        if bar is not None:
            bar.update(now - last)
    if not first:
        return
    bar.close()
    if film:
        film.finish()
    drift = (np.mean(fields.eta, dtype=float) - np.mean(first.eta, dtype=float)) / DEPTH
    print(f"{steps * DT / DAY:.2f} days in {time.perf_counter() - begin:.1f} s, {block.cart.size} process(es)")
    print(f"mass changed by {drift:.1e} of itself, largest speed {np.hypot(*velocity(fields)).max():.1f} m/s")
    for file in files:
        print(f"wrote {file}")


def main() -> None:
    args = parse(MPI.COMM_WORLD)
    block = decompose(MPI.COMM_WORLD, *args.size)
    advance = make_advance(block)
    state = jax.block_until_ready(advance(start(block), 0))  # compiles
    steps = max(1, round(args.days * DAY / DT))
    if args.benchmark:
        benchmark(block, advance, state, steps)
    else:
        run(block, advance, state, steps, args.save)


if __name__ == "__main__":
    main()
