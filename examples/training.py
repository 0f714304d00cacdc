"""A neural network that learns on several processes, each of which has its part of every batch.

    python -m mpixla run -n 2 examples/training.py --save training.png
    python -m mpixla run -n 4 examples/training.py --batch 240 --epochs 600

The network says on which of two spirals a point lies. All processes have the same parameters, and take the same steps
(Adam's). The loss is the mean over the whole batch: an allreduce of what each process says of its own points. Its
gradient is that of the whole batch on every process, since the parameters go through pvary() before they meet points
that differ by process: in reverse mode that is the sum over all processes. So the network is the one that a single
process would get from whole batches, up to rounding. At the end, the first process trains it alone, and compares.

Of mpixla this shows allreduce() and pvary() in a loss that jax.grad differentiates, and assert_replicated().
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from mpi4py import MPI
from showing import Parser, draw, keep, progress, say

import mpixla

WIDTHS = (2, 32, 32, 1)  # of the layers
RATE, B1, B2 = 3e-3, 0.9, 0.999  # Adam's

Parameters = list[tuple[Any, Any]]  # weights and bias of each layer
State = tuple[
    Any, Any, Any, Any
]  # the parameters, the means of the gradient and of its square, and the number of steps


def spirals(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points on two spirals, and 1 or -1 for the spiral of each."""
    rng = np.random.default_rng(1)
    side = rng.choice([-1.0, 1.0], number)
    angle = 3.2 * np.pi * np.sqrt(rng.uniform(0.02, 1, number))
    points = (side * angle / 10 * [np.cos(angle), np.sin(angle)]).T
    return points + 0.03 * rng.standard_normal(points.shape), side


def first_parameters() -> Parameters:
    """Return random parameters, the same on every process, since they come from the same seed."""
    rng = np.random.default_rng(2)
    return [(jnp.asarray(rng.normal(0, 2 / m**0.5, (m, n))), jnp.zeros(n)) for m, n in pairwise(WIDTHS)]


def network(parameters: Parameters, points: Any) -> Any:
    """Return a number for each point, whose sign says on which spiral it is."""
    *hidden, (weights, bias) = parameters
    for w, b in hidden:
        points = jnp.tanh(points @ w + b)
    return (points @ weights + bias)[:, 0]


def make_loss(comm: MPI.Comm, batch: int) -> Callable[[Parameters, Any, Any], Any]:
    def loss(parameters: Parameters, points: Any, sides: Any) -> Any:
        """Return the mean over a batch, of which this process has these points."""
        parameters = mpixla.pvary(parameters, comm=comm)  # in reverse mode, the sum of all processes' gradients
        own = jnp.logaddexp(0, -sides * network(parameters, points)).sum()
        return mpixla.allreduce(own, op=MPI.SUM, comm=comm) / batch

    return loss


def adam(state: State, gradient: Parameters) -> State:
    parameters, mean, square, number = state
    number = number + 1
    mean = jax.tree.map(lambda m, g: B1 * m + (1 - B1) * g, mean, gradient)
    square = jax.tree.map(lambda s, g: B2 * s + (1 - B2) * g**2, square, gradient)

    def stepped(p: Any, m: Any, s: Any) -> Any:
        return p - RATE * m / (1 - B1**number) / (jnp.sqrt(s / (1 - B2**number)) + 1e-8)

    parameters = jax.tree.map(stepped, parameters, mean, square)
    return parameters, mean, square, number


def train(comm: MPI.Comm, points: Any, sides: Any, epochs: int) -> tuple[Parameters, np.ndarray]:
    """Return the parameters at the end, and the loss of every batch in every epoch. The data are whole batches."""
    batch = points.shape[1]
    own = slice(comm.rank * batch // comm.size, (comm.rank + 1) * batch // comm.size)
    data = jnp.asarray(points[:, own]), jnp.asarray(sides[:, own])
    value_and_gradient = jax.value_and_grad(make_loss(comm, batch))

    def step(state: State, data: tuple[Any, Any]) -> tuple[State, Any]:
        loss, gradient = value_and_gradient(state[0], *data)
        return adam(state, gradient), loss

    @jax.jit
    def epoch(state: State) -> tuple[State, Any]:
        state, losses = lax.scan(step, state, data)
        # Without pvary the processes would drift apart, each with a loss that falls: nothing else would say so.
        return mpixla.assert_replicated(state, comm=comm), losses

    nothing = jax.tree.map(jnp.zeros_like, first_parameters())
    state: State = first_parameters(), nothing, nothing, jnp.zeros((), int)
    losses = []
    for _ in progress(range(epochs), "epochs"):
        state, loss = epoch(state)
        losses.append(np.asarray(loss))
    return state[0], np.stack(losses)


def picture(shared: np.ndarray, alone: np.ndarray, parameters: Parameters, points: Any, sides: Any) -> Callable:
    """Return the losses above their difference, and beside them what the network has learned."""

    def how(pyplot: Any) -> None:
        size = MPI.COMM_WORLD.size
        axes = pyplot.gcf().subplot_mosaic(
            [["loss", "map"], ["apart", "map"]], width_ratios=(1.15, 1), height_ratios=(2, 1)
        )
        axes["loss"].semilogy(alone.mean(1), color="C1", linewidth=5, alpha=0.5, label="one rank, whole batches")
        axes["loss"].semilogy(shared.mean(1), color="C0", linewidth=1.2, label=f"{size} rank(s), a part of each batch")
        axes["loss"].set(ylabel="loss, mean of an epoch", title="The same loss on any number of ranks")
        axes["loss"].tick_params(labelbottom=False)
        axes["loss"].legend()
        axes["apart"].semilogy(np.maximum(abs(shared - alone).max(1), 1e-10), color="0.3", linewidth=1)
        axes["apart"].set(xlabel="epoch", ylabel="largest difference")
        x = np.linspace(-1.15, 1.15, 200)
        grid = np.stack(np.meshgrid(x, x), -1).reshape(-1, 2)
        sure = np.tanh(np.asarray(network(parameters, grid)) / 2).reshape(200, 200)
        axes["map"].contourf(x, x, sure, np.linspace(-1, 1, 11), cmap="RdBu_r", alpha=0.7)
        for side, color in ((-1, "midnightblue"), (1, "darkred")):
            axes["map"].plot(*points[sides == side][:250].T, ".", color=color, markersize=3)
        axes["map"].set(aspect="equal", xlabel="$x_1$", ylabel="$x_2$", title="What the network has learned")

    return how


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--points", type=int, default=1200, help="to learn from")
    parser.add_argument("--batch", type=int, default=120, help="points in a batch, of all processes together")
    parser.add_argument("--epochs", type=int, default=200, help="how often all points are seen")
    parser.takes_picture()
    parser.takes_data()
    options = parser.parse()
    comm = MPI.COMM_WORLD
    if not comm.size <= options.batch <= options.points or options.points % options.batch or options.epochs < 1:
        parser.error(
            f"{options.points} points cannot be split into batches of {options.batch} on {comm.size} ranks: --batch "
            "must divide --points, and be at least one for each rank; --epochs must be positive."
        )
    points, sides = spirals(options.points)
    batches = points.reshape(-1, options.batch, 2), sides.reshape(-1, options.batch)

    parameters, shared = train(comm, *batches, options.epochs)
    if comm.rank != 0:
        return
    _, alone = train(MPI.COMM_SELF, *batches, options.epochs)
    right = np.mean(np.sign(network(parameters, points)) == sides)
    say(f"{shared.size} steps on {comm.size} rank(s): loss {shared[0, 0]:.4f} to {shared[-1, -1]:.4f}")
    say(f"{100 * right:.1f} % of the points are put on the right spiral")
    say(f"the loss is that of one rank with the whole batches, but for at most {abs(shared - alone).max():.1e}")
    layers = {f"{name}{i}": x for i, layer in enumerate(parameters) for name, x in zip("wb", layer, strict=True)}
    keep(options.data, points=batches[0], sides=batches[1], losses=shared, alone=alone, **layers)
    draw(options.save, picture(shared, alone, parameters, points, sides), figsize=(8.6, 4.4))


if __name__ == "__main__":
    main()
