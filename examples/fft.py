"""Turbulence by three-dimensional Fourier transforms, of an array that is spread over a grid of processes.

    python -m mpixla run -n 2 examples/fft.py --save fft.png
    python -m mpixla run -n 4 examples/fft.py --size 96 --reynolds 400

The Taylor-Green vortex, smooth at first, breaks into ever smaller eddies. Solved are, for the velocity u in a periodic
cube, the Navier-Stokes equations without their pressure, which P removes: it keeps what has no divergence.

    du/dt = P(u x curl u) + laplace(u) / Re

Derivatives are taken of the Fourier coefficients, products of the values at the points, and each time step transforms
to and fro. No process has a whole array. It has pencils, which are whole along one axis; the processes that share the
other axes trade blocks, so that the pencils lie along the next one, and each transform is of whole lines.

Printed is how far the transform is from jnp.fft.fftn of the whole array, and the derivative of the energy by the
viscosity after a tenth of the time: the simulation is differentiated, with what the processes tell each other.

Of mpixla this shows alltoall() on the rows and columns of a Cartesian communicator, and derivatives through it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import showing
from mpi4py import MPI

import mpixla

Array = Any
State = tuple[Any, Any, Any]  # the coefficients, their change in the last step, and the number of steps
GRID = MPI.Compute_dims(MPI.COMM_WORLD.size, 2)
CART = MPI.COMM_WORLD.Create_cart(GRID, periods=[False, False], reorder=False)
ALONG = [CART.Sub([True, False]), CART.Sub([False, True])]  # the processes of a column of the grid, and of a row


def turn(x: Array, comm: MPI.Comm, split: int, join: int) -> Array:
    """Split the axis that is whole among the processes, and make another one whole."""
    blocks = jnp.stack(jnp.split(x, comm.size, split))
    return jnp.concatenate(list(mpixla.alltoall(blocks, comm=comm)), join)


def forward(x: Array) -> Array:
    """Return the Fourier coefficients, split along axes 1 and 2, of an array split along axes 0 and 1."""
    x = turn(jnp.fft.fft(x, axis=2), ALONG[1], split=2, join=1)
    x = turn(jnp.fft.fft(x, axis=1), ALONG[0], split=1, join=0)
    return jnp.fft.fft(x, axis=0)


def backward(x: Array) -> Array:
    """Return the array that has these coefficients."""
    x = turn(jnp.fft.ifft(x, axis=0), ALONG[0], split=0, join=1)
    x = turn(jnp.fft.ifft(x, axis=1), ALONG[1], split=1, join=2)
    return jnp.fft.ifft(x, axis=2)


# Of vectors: one exchange for the three components.
to_coefficients = jax.vmap(forward)
to_values = jax.vmap(lambda x: backward(x).real)


def mine(whole: list[Any], axes: tuple[int, int]) -> list[Any]:
    """Return this process's part of the coordinates along the three axes, two of which are split."""
    for axis, parts, place in zip(axes, GRID, CART.coords, strict=True):
        whole[axis] = np.split(whole[axis], parts)[place]
    return np.meshgrid(*whole, indexing="ij", sparse=True)


class Flow:
    """The equations, on n x n x n points."""

    def __init__(self, n: int) -> None:
        points = 2 * np.pi * np.arange(n, dtype=np.float32) / n
        self.x = mine([points] * 3, (0, 1))
        self.is_quarter = self.x[0] == points[n // 4]
        wave = np.fft.fftfreq(n, 1 / n).astype(np.float32)
        self.k = mine([wave] * 3, (1, 2))
        self.k2 = self.k[0] ** 2 + self.k[1] ** 2 + self.k[2] ** 2
        self.known = np.maximum.reduce([abs(k) for k in np.broadcast_arrays(*self.k)]) < n / 3  # others are aliases
        self.n = n

    def start(self) -> State:
        """Return the Taylor-Green vortex."""
        x, y, z = self.x
        u = jnp.stack([jnp.sin(x) * jnp.cos(y) * jnp.cos(z), -jnp.cos(x) * jnp.sin(y) * jnp.cos(z), 0 * (x + y + z)])
        u = to_coefficients(u)
        return u, jnp.zeros_like(u), 0

    def curl(self, u: Array) -> Array:
        k = self.k
        return 1j * jnp.stack([k[i - 2] * u[i - 1] - k[i - 1] * u[i - 2] for i in range(3)])

    def rate(self, u: Array, viscosity: Array) -> Array:
        """Return the rate of change of the coefficients."""
        force = to_coefficients(jnp.cross(to_values(u), to_values(self.curl(u)), axis=0)) * self.known
        along = sum(k * f for k, f in zip(self.k, force, strict=True)) / np.maximum(self.k2, 1)
        return force - jnp.stack([k * along for k in self.k]) - viscosity * self.k2 * u

    def advance(self, state: State, viscosity: Array, steps: int, dt: float) -> State:
        """Advance by so many time steps (Adams and Bashforth's)."""

        def step(state: State, _: None) -> tuple[State, None]:
            u, before, number = state
            now = self.rate(u, viscosity)
            u = u + dt * jnp.where(number == 0, now, 1.5 * now - 0.5 * before)
            return (u, now, number + 1), None

        return jax.lax.scan(step, state, length=steps)[0]

    def spectrum(self, u: Array) -> Array:
        """Return the energy by wave number, on every process."""
        energy = (u.real**2 + u.imag**2).sum(0) / 2 / float(self.n) ** 6
        shell = np.rint(np.sqrt(self.k2)).astype(int)
        return mpixla.allreduce(jnp.bincount(shell.ravel(), energy.ravel(), length=self.n), op=MPI.SUM)

    def slice(self, u: Array) -> Array:
        """Return the size of the vorticity where x is pi/2, as rows of y."""
        size = jnp.sqrt((to_values(self.curl(u)) ** 2).sum(0))
        part = mpixla.allreduce((size * self.is_quarter).sum(0), op=MPI.SUM, comm=ALONG[0])
        return mpixla.allgather(part, comm=ALONG[1]).reshape(self.n, self.n)


def error_of_transform(n: int) -> float:
    """Return how far both ways are from jnp.fft's, of the whole array: the largest difference, by the largest value."""
    whole = jax.random.normal(jax.random.key(0), (n, n, n))
    part = whole[np.ix_(*(x.ravel() for x in mine([np.arange(n)] * 3, (0, 1))))]
    exact = jnp.fft.fftn(whole)
    there = jax.jit(forward)(part)
    back = jax.jit(backward)(there)
    errors = [
        abs(there - exact[np.ix_(*(k.ravel() for k in mine([np.arange(n)] * 3, (1, 2))))]).max() / abs(exact).max(),
        abs(back - part).max() / abs(whole).max(),
    ]
    return float(mpixla.allreduce(jnp.max(jnp.stack(errors)), op=MPI.MAX))


def draw(pyplot: Any, flow: Flow, times: list[float], slices: list[Array], spectra: list[Array]) -> None:
    figure = pyplot.gcf()
    axes = figure.subplots(1, 4, width_ratios=[1, 1, 1, 1.25])
    for axis, time, picture in zip(axes, times, slices, strict=False):
        image = axis.imshow(picture, "magma", origin="lower", extent=(0, 2, 0, 2), vmin=0, interpolation="bicubic")
        axis.set(title=f"time {time:.3g}", xlabel=r"z / $\pi$", xticks=[0, 1, 2], yticks=[0, 1, 2])
        figure.colorbar(image, orientation="horizontal", label="vorticity")
    axes[0].set_ylabel(r"y / $\pi$")
    last, waves = axes[3], np.arange(2, flow.n // 3)
    for time, spectrum in zip(times, spectra, strict=True):
        last.semilogy(waves, spectrum[waves], "o-", markersize=3, label=f"time {time:.3g}")
    last.set(title="energy of the eddies", xlabel="wave number", xticks=waves[:: 1 + len(waves) // 8], ylim=(1e-6, 0.5))
    last.legend()


def main() -> None:
    parser = showing.Parser(__doc__)
    parser.add_argument("--size", type=int, default=48, metavar="N", help="points along each axis")
    parser.add_argument("--reynolds", type=float, default=200, help="Reynolds number, the inverse of the viscosity")
    parser.add_argument("--time", type=float, default=9, help="until when")
    parser.add_argument("--steps", type=int, default=300, help="time steps, rounded to a multiple of ten")
    parser.takes_picture()
    parser.takes_data()
    options = parser.parse()
    if any(options.size % parts for parts in GRID):
        parser.error(
            f"--size {options.size}: a grid of {GRID[0]} x {GRID[1]} processes cannot share so many points. "
            f"Take a multiple of {np.lcm(*GRID)}."
        )
    steps, viscosity = max(1, round(options.steps / 10)), 1 / options.reynolds
    dt = options.time / (10 * steps)
    error = error_of_transform(options.size)
    showing.say(
        f"the transform is that of jnp.fft.fftn but for {error:.1e}, on a grid of {GRID[0]} x {GRID[1]} processes"
    )

    flow = Flow(options.size)
    state = jax.jit(flow.start)()
    spectrum, vorticity = jax.jit(flow.spectrum), jax.jit(flow.slice)

    @jax.jit
    def energy_later(viscosity: Array) -> Array:
        return flow.spectrum(flow.advance(state, viscosity, steps, dt)[0]).sum()

    energy, slope = jax.jvp(energy_later, (viscosity,), (1.0,))
    showing.say(f"after {steps * dt:.3g} the energy is {energy:.5f}, its derivative by the viscosity {slope:.5f}")

    advance = jax.jit(lambda state: flow.advance(state, viscosity, steps, dt))
    spectra, slices = [spectrum(state[0])], [vorticity(state[0])]
    for _ in showing.progress(range(10), "tenths"):
        state = jax.block_until_ready(advance(state))
        spectra.append(spectrum(state[0]))
        slices.append(vorticity(state[0]))
    showing.say(f"at the end the energy is {spectra[-1].sum():.5f}, of {spectra[0].sum():.5f}")
    showing.keep(options.data, error=error, slope=slope, spectra=spectra, slices=slices)
    chosen = [0, 5, 10]
    times = [i * steps * dt for i in chosen]
    pictures = [slices[i] for i in chosen], [spectra[i] for i in chosen]
    showing.draw(options.save, lambda pyplot: draw(pyplot, flow, times, *pictures), figsize=(12, 3.8))


if __name__ == "__main__":
    main()
