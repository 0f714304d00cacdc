"""The temperature of a plate, by conjugate gradients on a domain that is split, and what would make it lower.

    python -m mpixla run -n 2 examples/conjugate_gradients.py --save conjugate_gradients.png
    python -m mpixla run -n 4 examples/conjugate_gradients.py --size 240

Solved is

    -div(k grad(T)) = heat        with T = 0 at the edges

on a square plate that is heated in its middle, and whose conductivity k is a hundred times larger in some disks than
between them. Each process has a block of cells. In each step the operator needs a halo exchange, and inner products are
sums over all processes: jax.scipy.sparse.linalg.cg would take those of the block alone. There are fewer steps if each
residual is divided by the diagonal of the operator, which is the simplest preconditioner.

lax.custom_linear_solve makes the solution a function with derivatives: jax.grad of the mean temperature by the
conductivity of every cell costs one more solution, with all its halo exchanges. Where it is most negative, a material
that conducts better would cool the plate most.

Of mpixla this shows halo_exchange() in an operator, and vdot() and norm() in a lax.while_loop that all processes leave
together. With exact=True all residuals have the same bits on any number of processes.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from blocks import cells_of, whole
from jax import lax
from mpi4py import MPI
from showing import Parser, draw, keep, say

import mpixla

CONDUCTIVITY = 1.0, 100.0  # between the disks, and in them
DISKS = ((0.28, 0.72, 0.16), (0.7, 0.62, 0.13), (0.42, 0.3, 0.12), (0.8, 0.22, 0.1))  # x, y and radius
Faces = tuple[Any, Any]  # of a block: conductivities between rows, and between columns


def faces_of(cart: MPI.Cartcomm, k: Any) -> Faces:
    """Return the harmonic mean of the cells on both sides, in series. Beyond an edge the plate goes on as it is."""
    k = mpixla.halo_exchange(jnp.pad(k, 1, mode="edge"), cart)
    rows, columns = k[:, 1:-1], k[1:-1]
    return (
        2 * rows[1:] * rows[:-1] / (rows[1:] + rows[:-1]),
        2 * columns[:, 1:] * columns[:, :-1] / (columns[:, 1:] + columns[:, :-1]),
    )


def operator(cart: MPI.Cartcomm, faces: Faces, t: Any) -> Any:
    """Return -div(k grad(t)), times the area of a cell."""
    t = mpixla.halo_exchange(jnp.pad(t, 1), cart)  # beyond an edge it stays 0
    through_rows, through_columns = faces[0] * jnp.diff(t[:, 1:-1], axis=0), faces[1] * jnp.diff(t[1:-1], axis=1)
    return -jnp.diff(through_rows, axis=0) - jnp.diff(through_columns, axis=1)


def conjugate_gradients(matvec: Callable, b: Any, scale: Any, tol: float, maxiter: int) -> tuple[Any, Any]:
    """Solve matvec(x) = b, with scale times a residual for a preconditioner. Also return all norms."""

    def is_unfinished(state: tuple) -> Any:
        *_, norms, i = state
        return (norms[i] > tol * norms[0]) & (i < maxiter)

    def step(state: tuple) -> tuple:
        x, r, p, rz, norms, i = state
        ap = matvec(p)
        alpha = rz / mpixla.vdot(p, ap, exact=True)
        x, r = x + alpha * p, r - alpha * ap
        z = scale * r
        rz, before = mpixla.vdot(r, z, exact=True), rz
        return x, r, z + rz / before * p, rz, norms.at[i + 1].set(mpixla.norm(r, exact=True)), i + 1

    z = scale * b
    norms = jnp.full(maxiter + 1, jnp.nan, b.dtype).at[0].set(mpixla.norm(b, exact=True))
    first = (jnp.zeros_like(b), b, z, mpixla.vdot(b, z, exact=True), norms, 0)
    x, _, _, _, norms, _ = lax.while_loop(is_unfinished, step, first)
    return x, norms


def make_solve(cart: MPI.Cartcomm, tol: float, maxiter: int, preconditioned: bool) -> Callable[[Any, Any], Any]:
    """Return the temperature, and the norms of residuals, by the conductivity and the heat of this process's cells."""

    def solve(k: Any, heat: Any) -> tuple[Any, Any]:
        faces = faces_of(cart, k)
        diagonal = faces[0][1:] + faces[0][:-1] + faces[1][:, 1:] + faces[1][:, :-1]
        scale = lax.stop_gradient(1 / diagonal) if preconditioned else jnp.ones_like(diagonal)

        def method(matvec: Callable, b: Any) -> tuple[Any, Any]:
            return conjugate_gradients(matvec, b, scale, tol, maxiter)

        def matvec(t: Any) -> Any:
            return operator(cart, faces, t)

        return lax.custom_linear_solve(matvec, heat, method, symmetric=True, has_aux=True)

    return solve


def plate(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the conductivity of all cells, and the heat of all cells, times their area."""
    y, x = (np.indices((size, size)) + 0.5) / size
    k = np.full((size, size), CONDUCTIVITY[0])
    for x0, y0, radius in DISKS:
        k[np.hypot(x - x0, y - y0) < radius] = CONDUCTIVITY[1]
    heat = np.exp(-((x - 0.5) ** 2 + (y - 0.5) ** 2) / 0.005)
    return k, heat / heat.sum()


def directly(k: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """Return the same temperature by SciPy, which factorizes the matrix of the whole plate."""
    from scipy.sparse import diags_array
    from scipy.sparse.linalg import spsolve

    size = len(k)
    wide = np.pad(k, 1, mode="edge")
    across = [2 * k * o / (k + o) for o in (wide[:-2, 1:-1], wide[2:, 1:-1], wide[1:-1, :-2], wide[1:-1, 2:])]
    diagonal = sum(across).ravel()
    south, _, west, _ = (a.copy() for a in across)
    west[:, 0] = 0
    below, left = -south.ravel()[size:], -west.ravel()[1:]
    matrix = diags_array([below, left, diagonal, left, below], offsets=[-size, -1, 0, 1, size])
    return spsolve(matrix.tocsc(), heat.ravel()).reshape(k.shape)


def picture(cart: MPI.Cartcomm, k: Any, t: Any, by_k: Any, residuals: dict[str, Any]) -> Callable:
    def how(pyplot: Any) -> None:
        axes = pyplot.gcf().subplot_mosaic([["t", "by_k"], ["norms", "norms"]], height_ratios=(1.6, 1))
        at = (np.arange(len(k)) + 0.5) / len(k)
        image = axes["t"].contourf(at, at, t, 20, cmap="inferno")
        pyplot.colorbar(image, ax=axes["t"], shrink=0.85)
        axes["t"].set(title="Temperature (green: disks)", aspect="equal")
        colors, least = pyplot.get_cmap("YlOrBr_r", 20), np.quantile(by_k, 0.005)
        image = axes["by_k"].imshow(by_k, origin="lower", extent=(0, 1, 0, 1), clim=(least, 0), cmap=colors)
        pyplot.colorbar(image, ax=axes["by_k"], shrink=0.85)
        axes["by_k"].set(title="Gradient by conductivity")
        for name in ("t", "by_k"):
            axes[name].contour(at, at, k, [np.mean(CONDUCTIVITY)], colors="C2", linewidths=1)
            for line, n in ((axes[name].axhline, cart.dims[0]), (axes[name].axvline, cart.dims[1])):
                for i in range(1, n):
                    line(i / n, color="0.5", linewidth=0.8, linestyle="--")
            axes[name].set(xlim=(0, 1), ylim=(0, 1), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
        for name, norms in residuals.items():
            axes["norms"].semilogy(norms / norms[0], label=name)
        axes["norms"].set(
            xlabel="iteration", ylabel="residual / first residual", title=f"Convergence on {cart.size} rank(s)"
        )
        axes["norms"].legend()

    return how


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Parser(__doc__)
    parser.add_argument("--size", type=int, default=96, help="cells on each side")
    parser.add_argument("--tol", type=float, default=1e-10, help="norm of the last residual over that of the first")
    parser.takes_picture()
    parser.takes_data()
    options = parser.parse()
    dims, size = MPI.Compute_dims(MPI.COMM_WORLD.size, 2), options.size
    if size < 1 or any(size % n for n in dims) or not 0 < options.tol < 1:
        parser.error(
            f"{size} x {size} cells cannot be split into {dims[0]} x {dims[1]} equal blocks: make --size a multiple of "
            f"{np.lcm(*dims)}; --tol must be between 0 and 1."
        )
    cart = MPI.COMM_WORLD.Create_cart(dims, periods=(False, False))
    own = cells_of(cart, size)
    k, heat = (jnp.asarray(field[own]) for field in plate(size))

    residuals = {}
    for name, preconditioned in (("plain", False), ("preconditioned", True)):
        solve = make_solve(cart, options.tol, 100 * size, preconditioned)
        t, norms = jax.jit(solve)(k, heat)
        residuals[name] = np.asarray(norms)[~np.isnan(norms)]

    def mean(k: Any) -> Any:
        return mpixla.allreduce(solve(k, heat)[0].sum(), op=MPI.SUM) / size**2

    blocks = {"temperature": t, "gradient": jax.jit(jax.grad(mean))(k)}
    fields = {name: whole(cart, block) for name, block in blocks.items()}
    if cart.rank != 0:
        return
    direct = directly(*plate(size))
    wrong = abs(fields["temperature"] - direct).max() / direct.max()
    say(f"{size} x {size} cells on {dims[0]} x {dims[1]} rank(s)")
    for name, norms in residuals.items():
        say(f"{name:14} {len(norms) - 1:5} iterations, residual {norms[-1] / norms[0]:.1e} of the first")
    say(f"the temperature differs from a direct solution by {wrong:.1e} of the largest")
    keep(options.data, **fields, **residuals)
    shown = plate(size)[0], fields["temperature"], size**2 * fields["gradient"], residuals
    draw(options.save, picture(cart, *shown), figsize=(8.5, 6.8))


if __name__ == "__main__":
    main()
