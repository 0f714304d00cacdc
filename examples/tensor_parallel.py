"""A network whose layers are split over processes, and that none of them has as a whole.

    mpirun -n 2 python examples/tensor_parallel.py --save tensor_parallel.png
    mpirun -n 4 python examples/tensor_parallel.py --hidden 256 --steps 1000

The network is a chain of blocks as in a transformer, x + gelu(norm(x) W1) W2, and fits a picture: a number for each place.
Each process has some columns of every W1, and the same rows of every W2, so its share of the hidden units. A block needs
two operations, one where x enters what is split, and one where it leaves it:

    enter    pvary(x): nothing in forward mode; in reverse mode the allreduce of what all shares say of x
    leave    allreduce(y): the sum of the shares in forward mode; nothing in reverse mode

The gradient by a share is then the share of the gradient, and that by what is not split is the same on all processes. With
nothing for enter and leave this is the whole network, which the first process trains, too, for comparison.

Of mpixla this shows allreduce() and pvary(), the two halves of tensor parallelism, and gather() of a pytree.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from mpi4py import MPI
from showing import Parser, draw, keep, progress, say

import mpixla

WIDTH, BLOCKS, WAVES = 32, 3, 8  # numbers between blocks; blocks; pairs of sine and cosine that a place is made of
RATE, MOMENTUM = 0.02, 0.9
CHUNK = 20  # of steps in one jit

Tree = Any  # a pytree of arrays: parameters, gradients
Edge = Callable[[Any], Any]


def enter(x: Any) -> Any:
    return mpixla.pvary(x)


def leave(y: Any) -> Any:
    return mpixla.allreduce(y, op=MPI.SUM)


def unchanged(x: Any) -> Any:
    return x


def network(parameters: Tree, places: Any, enter: Edge, leave: Edge) -> Any:
    x = places @ parameters["first"]
    for block in parameters["blocks"]:
        normal = (x - x.mean(1, keepdims=True)) / (x.std(1, keepdims=True) + 1e-3) * block["scale"]
        hidden = jax.nn.gelu(enter(normal) @ block["W1"] + block["bias"])
        x = x + leave(hidden @ block["W2"])
    return x @ parameters["last"]


def make_loss(places: Any, values: Any, enter: Edge, leave: Edge) -> Callable[[Tree], Any]:
    return lambda parameters: jnp.mean((network(parameters, places, enter, leave) - values) ** 2)


def whole_parameters(hidden: int) -> Tree:
    """Random ones of the whole network, which a process makes only to take its share."""
    rng = np.random.default_rng(1)

    def matrix(m: int, n: int) -> np.ndarray:
        return rng.normal(0, m**-0.5, (m, n))

    blocks = [
        {"scale": np.ones(WIDTH), "W1": matrix(WIDTH, hidden), "bias": np.zeros(hidden), "W2": matrix(hidden, WIDTH)}
        for _ in range(BLOCKS)
    ]
    return {"first": matrix(4 * WAVES, WIDTH), "blocks": blocks, "last": matrix(WIDTH, 1)[:, 0]}


SPLIT = {"W1": 1, "bias": 0, "W2": 0}  # the axis that hidden units are on


def share_of(parameters: Tree, comm: MPI.Comm) -> Tree:
    def part(block: Tree) -> Tree:
        return block | {name: np.split(block[name], comm.size, axis)[comm.rank] for name, axis in SPLIT.items()}

    return jax.tree.map(jnp.asarray, parameters | {"blocks": [part(block) for block in parameters["blocks"]]})


def whole_of(shares: Tree) -> Tree:
    """The whole parameters, or gradient, on rank 0, and something else on the others."""
    gathered = jax.tree.map(np.asarray, mpixla.gather([{k: b[k] for k in SPLIT} for b in shares["blocks"]], root=0))
    whole = [{name: np.concatenate(list(block[name]), axis) for name, axis in SPLIT.items()} for block in gathered]
    return shares | {"blocks": [b | w for b, w in zip(shares["blocks"], whole, strict=True)]}


def make_steps(loss: Callable[[Tree], Any]) -> Callable[[Tree, Tree], tuple[Tree, Tree, Any]]:
    """The function that goes down the gradient by so many steps, with momentum."""

    def step(state: tuple[Tree, Tree], _: None) -> tuple[tuple[Tree, Tree], Any]:
        parameters, speed = state
        value, gradient = jax.value_and_grad(loss)(parameters)
        speed = jax.tree.map(lambda s, g: MOMENTUM * s - RATE * g, speed, gradient)
        return (jax.tree.map(jnp.add, parameters, speed), speed), value

    return jax.jit(lambda parameters, speed: lax.scan(step, (parameters, speed), length=CHUNK))


def train(loss: Callable[[Tree], Any], parameters: Tree, steps: int) -> tuple[Tree, np.ndarray]:
    advance, speed = make_steps(loss), jax.tree.map(jnp.zeros_like, parameters)
    losses = []
    for _ in progress(range(steps // CHUNK), f"x {CHUNK} steps"):
        (parameters, speed), values = advance(parameters, speed)
        losses.append(np.asarray(values))
    return parameters, np.concatenate(losses)


def places_and_values(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Each pixel's place, as waves, and its value: rings that two stones make in water."""
    y, x = (np.indices((size, size)).reshape(2, -1) + 0.5) / size
    waves = np.pi * np.arange(1, WAVES + 1)
    places = np.concatenate([f(np.outer(a, waves)) for a in (x, y) for f in (np.sin, np.cos)], axis=1)
    near, far = np.hypot(x - 0.3, y - 0.35), np.hypot(x - 0.75, y - 0.7)
    return places, np.cos(30 * near) * np.exp(-3 * near) + np.cos(30 * far) * np.exp(-3 * far)


def apart(split: Tree, whole: Tree) -> dict[str, float]:
    """For each leaf, the largest difference over the largest entry."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(split), jax.tree.leaves(whole), strict=True)
    return {
        jax.tree_util.keystr(path, simple=True, separator=" ").replace("blocks ", "block "): float(
            abs(np.asarray(a) - np.asarray(b)).max() / abs(np.asarray(b)).max()
        )
        for (path, a), b in pairs
    }
