"""Where did it come from? The first state of a model, found from its last by the adjoint, on a domain that is split.

    python -m mpixla run -n 2 examples/adjoint.py --save adjoint.png
    python -m mpixla run -n 4 examples/adjoint.py --size 192 --iterations 60

Plankton drifts in an eddy, spreads and grows. Its concentration c follows

    dc/dt + d(u c)/dx + d(v c)/dy = D laplace(c) + growth c (1 - c)

on a periodic square of cells, of which each process has a block: third-order upwind fluxes, Runge-Kutta steps.
Observed is the state at the end, with some noise. The misfit between it and what the model makes of a guess is a
function of all cells of the first state. Its gradient is jax.grad of the whole run: the adjoint model, which goes back
in time, and adds up cotangents where the model exchanged ghosts. Conjugate gradients go down it, along each direction
as far as is best by the tangent-linear model, which is jax.jvp.

jax.checkpoint keeps the states between segments of the run only, and computes those within a segment once more on the
way back, so that the memory grows with the number of segments, and not with that of steps.

Of mpixla this shows halo_exchange() in a loop that is differentiated in both modes, vdot(), and gather().
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from blocks import cells_of, whole
from jax import lax
from mpi4py import MPI
from showing import Parser, draw, keep, progress, say

import mpixla

DURATION, DIFFUSIVITY, GROWTH, NOISE = 1.0, 2e-4, 1.0, 0.003  # the eddy's largest speed and the square's side are 1
Model = Callable[[Any], Any]  # from the first state to the last, each this process's block


def flux(c: Any, speed: Any, h: float) -> Any:
    """Return the flow through faces between columns. The first face is between the second and the third column."""
    a, b, d, e = c[:, :-3], c[:, 1:-2], c[:, 2:-1], c[:, 3:]
    return speed * jnp.where(speed > 0, -a + 5 * b + 2 * d, 2 * b + 5 * d - e) / 6 - DIFFUSIVITY * (d - b) / h


def make_model(cart: MPI.Cartcomm, size: int) -> Model:
    h = 1 / size
    rows, columns = cells_of(cart, size)
    wave = [np.sin(np.pi * np.arange(s.start, s.stop + 1) * h) ** 2 for s in (rows, columns)]
    stream = np.outer(*wave) / np.pi  # the stream function at the corners of cells: what flows is conserved
    u, v = np.diff(stream, axis=0) / h, -np.diff(stream, axis=1) / h

    segment = 10  # steps
    segments = int(np.ceil(DURATION / (0.8 * h) / segment))
    dt = DURATION / (segments * segment)

    def rate(c: Any) -> Any:
        wide = mpixla.halo_exchange(jnp.pad(c, 2), cart, width=2)
        through_x, through_y = flux(wide[2:-2], u, h), flux(wide[:, 2:-2].T, v.T, h).T
        return -(jnp.diff(through_x, axis=1) + jnp.diff(through_y, axis=0)) / h + GROWTH * c * (1 - c)

    def step(c: Any, _: None) -> tuple[Any, None]:
        new = c
        for part in (3, 2, 1):
            new = c + dt / part * rate(new)
        return new, None

    @jax.checkpoint
    def some_steps(c: Any, _: None) -> tuple[Any, None]:
        return lax.scan(step, c, length=segment)

    return lambda c: lax.scan(some_steps, c, length=segments)[0]


def bodies(size: int) -> np.ndarray:
    """Return the initial state: a disk with a slot, a cone and a hump."""
    y, x = (np.indices((size, size)) + 0.5) / size

    def away(x0: float, y0: float) -> np.ndarray:
        return np.hypot(x - x0, y - y0) / 0.16

    disk = (away(0.5, 0.75) < 1) & ((abs(x - 0.5) > 0.03) | (y > 0.82))
    hump = (1 + np.cos(np.pi * np.minimum(away(0.25, 0.45), 1))) / 2
    return 0.8 * (disk + np.maximum(0, 1 - away(0.5, 0.25)) + hump)


def descend(model: Model, misfit: Callable[[Any], Any], guess: Any, iterations: int) -> tuple[Any, Any, list[float]]:
    """Return a better guess, the gradient at the first one, and the misfits on the way."""
    value_and_gradient = jax.jit(jax.value_and_grad(misfit))
    tangent_linear = jax.jit(lambda at, direction: jax.jvp(model, (at,), (direction,))[1])

    value, gradient = value_and_gradient(guess)
    first, direction, misfits = gradient, -gradient, [float(value)]
    # The gradient is right if it says what a small step changes.
    small = 1e-4 / mpixla.norm(gradient, ord=jnp.inf)
    change = value_and_gradient(guess + small * gradient)[0] - value_and_gradient(guess - small * gradient)[0]
    wrong = change / (2 * small * mpixla.vdot(gradient, gradient)) - 1
    say(f"the gradient differs from a finite difference by {abs(float(wrong)):.1e} of it")

    for _ in progress(range(iterations), "iterations"):
        change = tangent_linear(guess, direction)
        guess = guess - mpixla.vdot(gradient, direction) / mpixla.vdot(change, change) * direction
        before = gradient
        value, gradient = value_and_gradient(guess)
        turn = mpixla.vdot(gradient, gradient - before) / mpixla.vdot(before, before)  # Polak and Ribière's
        direction = jnp.maximum(turn, 0) * direction - gradient
        misfits.append(float(value))
    return guess, first, misfits


def picture(cart: MPI.Cartcomm, fields: dict[str, Any], misfits: list[float], noise: float) -> Callable:
    def how(pyplot: Any) -> None:
        axes = pyplot.gcf().subplots(2, 2)
        for place, (title, field) in zip(axes.flat, fields.items(), strict=False):
            image = place.imshow(field, origin="lower", extent=(0, 1, 0, 1), clim=(-0.1, 1), cmap="YlGnBu")
            for line, n in ((place.axhline, cart.dims[0]), (place.axvline, cart.dims[1])):
                for i in range(1, n):
                    line(i / n, color="C3", linewidth=0.8, linestyle="--")
            place.set(title=title, xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
        pyplot.colorbar(image, ax=axes[:, 0], location="left", label="concentration (dashed: between ranks)")
        axes[1, 1].semilogy(misfits, "o-", markersize=3, label="misfit")
        axes[1, 1].axhline(noise, color="0.4", linestyle=":", label="misfit of the true first state")
        axes[1, 1].set(xlabel="iteration", title="Misfit to what was observed")
        axes[1, 1].legend()

    return how


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Parser(__doc__)
    parser.add_argument("--size", type=int, default=72, help="cells on each side")
    parser.add_argument("--iterations", type=int, default=40, help="steps down the gradient")
    parser.takes_picture()
    parser.takes_data()
    options = parser.parse()
    dims, size = MPI.Compute_dims(MPI.COMM_WORLD.size, 2), options.size
    if any(size % n or size < 2 * n for n in dims) or options.iterations < 1:
        parser.error(
            f"{size} x {size} cells cannot be split into {dims[0]} x {dims[1]} equal blocks of at least 2 x 2: make "
            f"--size a multiple of {np.lcm(*dims)}; --iterations must be positive."
        )
    cart = MPI.COMM_WORLD.Create_cart(dims, periods=(True, True))
    own = cells_of(cart, size)
    model = make_model(cart, size)
    rng = np.random.default_rng(1)  # each process makes all, and takes its part
    truth = jnp.asarray(bodies(size)[own])
    noise = jnp.asarray(NOISE * rng.standard_normal((size, size))[own])
    observed = jax.jit(model)(truth) + noise

    def misfit(first: Any) -> Any:
        apart = model(first) - observed
        return mpixla.vdot(apart, apart) / 2

    recovered, gradient, misfits = descend(model, misfit, jnp.zeros_like(truth), options.iterations)
    least = float(mpixla.vdot(noise, noise)) / 2
    say(f"{size} x {size} cells on {dims[0]} x {dims[1]} rank(s), misfit {misfits[0]:.3g} to {misfits[-1]:.3g}")
    say(f"the misfit of the true first state, by noise alone, is {least:.3g}")

    blocks = {"truth": truth, "observed": observed, "recovered": recovered, "gradient": gradient}
    fields = {name: whole(cart, block) for name, block in blocks.items()}
    keep(options.data, misfits=misfits, **fields)
    titles = {
        "truth": "First state, the truth",
        "observed": "Last state, observed",
        "recovered": "First state, recovered",
    }
    shown = {title: fields[name] for name, title in titles.items()}
    draw(options.save, picture(cart, shown, misfits, least), figsize=(9, 7.5))


if __name__ == "__main__":
    main()
