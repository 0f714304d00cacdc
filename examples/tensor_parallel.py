"""A network whose layers are split over processes, and that none of them has as a whole.

    python -m mpixla run -n 2 examples/tensor_parallel.py --save tensor_parallel.png
    python -m mpixla run -n 4 examples/tensor_parallel.py --hidden 256 --steps 800

The network is a chain of blocks as in a transformer, x + gelu(norm(x) W1) W2, and fits a picture: a number for each
place. Each process has some columns of every W1, and the same rows of every W2: its share of the hidden units. A block
needs two operations, one where x enters what is split, and one where it leaves it:

    enter    pvary(x): nothing in forward mode; in reverse mode the allreduce of what all shares say of x
    leave    allreduce(y): the sum of the shares in forward mode; nothing in reverse mode

The gradient by a share is then the share of the gradient, and that by what is not split is the same on all processes.
With nothing for enter and leave this is the whole network, which the first process trains, too, for comparison.

Of mpixla this shows allreduce() and pvary(), the two halves of tensor parallelism, and allgather() of a pytree.
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
    """Return random ones of the whole network, which a process makes only to take its share."""
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
    """Return the whole parameters, or gradient, on all processes."""
    gathered = jax.tree.map(np.asarray, mpixla.allgather([{k: b[k] for k in SPLIT} for b in shares["blocks"]]))
    whole = [{name: np.concatenate(list(block[name]), axis) for name, axis in SPLIT.items()} for block in gathered]
    return shares | {"blocks": [b | w for b, w in zip(shares["blocks"], whole, strict=True)]}


def make_steps(loss: Callable[[Tree], Any]) -> Callable[[Tree, Tree], tuple[Tree, Tree, Any]]:
    """Return the function that goes down the gradient by so many steps, with momentum."""

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
    """Return each pixel's place, as waves, and its value: rings that two stones make in water."""
    y, x = (np.indices((size, size)).reshape(2, -1) + 0.5) / size
    waves = np.pi * np.arange(1, WAVES + 1)
    places = np.concatenate([f(np.outer(a, waves)) for a in (x, y) for f in (np.sin, np.cos)], axis=1)
    near, far = np.hypot(x - 0.3, y - 0.35), np.hypot(x - 0.75, y - 0.7)
    return places, np.cos(30 * near) * np.exp(-3 * near) + np.cos(30 * far) * np.exp(-3 * far)


def named(tree: Tree) -> dict[str, np.ndarray]:
    """Return the arrays by names such as block 0 W1."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(k, simple=True, separator=" ").replace("blocks", "block"): np.asarray(x) for k, x in leaves
    }


def apart(split: Tree, whole: Tree) -> dict[str, float]:
    """Return for each array the largest difference over the largest entry."""
    other = named(whole)
    return {name: float(abs(x - other[name]).max() / abs(other[name]).max()) for name, x in named(split).items()}


def picture(values: Any, fit: Any, losses: np.ndarray, alone: np.ndarray, gradients: dict[str, float]) -> Callable:
    """Draw the target and the network's output, the loss on the way, and the differences of gradients."""

    def how(pyplot: Any) -> None:
        size = round(len(values) ** 0.5)
        axes = pyplot.gcf().subplot_mosaic([["target", "loss"], ["fit", "gradients"]], width_ratios=(1, 1.9))
        for name, shown in (("target", values), ("fit", fit)):
            image = axes[name].imshow(np.reshape(shown, (size, size)), origin="lower", clim=(-1, 1), cmap="RdBu_r")
            axes[name].set(title={"target": "What to fit", "fit": "What the network fits"}[name], xticks=[], yticks=[])
            pyplot.colorbar(image, ax=axes[name], shrink=0.9)
        ranks = MPI.COMM_WORLD.size
        axes["loss"].semilogy(alone, color="C1", linewidth=5, alpha=0.5, label="whole network on one rank")
        axes["loss"].semilogy(losses, color="C0", linewidth=1.2, label=f"layers split over {ranks} rank(s)")
        axes["loss"].set(xlabel="step", ylabel="mean squared error", title="The same training")
        axes["loss"].legend()
        epsilon = np.finfo(values.dtype).eps
        for label, is_split in (("split over ranks", True), ("on every rank", False)):
            shown = {i: d for i, (k, d) in enumerate(gradients.items()) if (k.split()[-1] in SPLIT) == is_split}
            heights = np.maximum(list(shown.values()), epsilon / 50)  # some may be equal
            axes["gradients"].semilogy(list(shown), heights, "C0o" if is_split else "C2s", label=label)
        axes["gradients"].axhline(epsilon, color="0.3", linestyle=":", label="machine epsilon")
        axes["gradients"].set_xticks(range(len(gradients)), list(gradients), rotation=45, ha="right")
        axes["gradients"].set(ylabel="relative difference", title="The same gradient, parameter by parameter")
        axes["gradients"].set_ylim(epsilon / 100, epsilon * 1e5)
        axes["gradients"].legend(ncols=3, columnspacing=1, handlelength=1.5)

    return how


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--hidden", type=int, default=96, help="hidden units of a block, of all processes together")
    parser.add_argument("--steps", type=int, default=400, help=f"to train, a multiple of {CHUNK}")
    parser.add_argument("--size", type=int, default=32, help="pixels of the picture on each side")
    parser.takes_picture()
    parser.takes_data()
    options = parser.parse()
    comm = MPI.COMM_WORLD
    if options.hidden < 1 or options.hidden % comm.size:
        parser.error(
            f"{options.hidden} hidden units cannot be split over {comm.size} ranks: make --hidden a multiple of that."
        )
    if options.steps < CHUNK or options.steps % CHUNK or options.size < 2:
        parser.error(f"--steps must be a multiple of {CHUNK}, and --size at least 2.")
    places, values = map(jnp.asarray, places_and_values(options.size))
    whole = whole_parameters(options.hidden)
    parameters = share_of(whole, comm)
    loss = make_loss(places, values, enter, leave)

    gradient = whole_of(jax.jit(jax.grad(loss))(parameters))
    trained, losses = train(loss, parameters, options.steps)
    mpixla.assert_replicated([trained["first"], trained["last"], [b["scale"] for b in trained["blocks"]]])
    fit = jax.jit(lambda parameters: network(parameters, places, enter, leave))(trained)
    own = sum(x.size for x in jax.tree.leaves(parameters))
    together = whole_of(trained)
    if comm.rank != 0:
        return
    whole = jax.tree.map(jnp.asarray, whole)
    loss_alone = make_loss(places, values, unchanged, unchanged)
    gradients = apart(gradient, jax.jit(jax.grad(loss_alone))(whole))
    _, alone = train(loss_alone, whole, options.steps)
    say(f"{own} of {sum(x.size for x in jax.tree.leaves(whole))} parameters on each of {comm.size} rank(s)")
    say(f"the gradient is the whole network's, but for at most {max(gradients.values()):.1e} of its largest entry")
    say(f"{options.steps} steps: error {losses[0]:.4f} to {losses[-1]:.4f}; whole network {alone[-1]:.4f}")
    kept = {"gradient": gradient, "trained": together}
    arrays = {f"{what} {name}": x for what, tree in kept.items() for name, x in named(tree).items()}
    keep(options.data, losses=losses, alone=alone, fit=fit, **arrays)
    draw(options.save, picture(values, fit, losses, alone, gradients), figsize=(9, 5.8))


if __name__ == "__main__":
    main()
