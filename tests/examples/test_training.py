"""examples/training.py: the losses and the network are those of training in NumPy, whatever the number of ranks."""

import numpy as np
import pytest

from jobs import ROOT

SMALL = ("--points", "60", "--batch", "20", "--epochs", "4")


def train(batches, epochs, parameters):
    """Return the loss of every batch, and the parameters at the end: backpropagation and Adam, written out."""
    parameters = [np.array(p, float) for p in parameters]
    means, squares = ([np.zeros_like(p) for p in parameters] for _ in range(2))
    losses = []
    for step in range(epochs * len(batches)):
        points, sides = batches[step % len(batches)]
        w0, b0, w1, b1, w2, b2 = parameters
        first = np.tanh(points @ w0 + b0)
        second = np.tanh(first @ w1 + b1)
        margin = sides * (second @ w2 + b2)[:, 0]
        losses.append(np.log1p(np.exp(-margin)).mean())
        by_output = (-sides / (1 + np.exp(margin)) / len(points))[:, None]
        by_second = by_output @ w2.T * (1 - second**2)
        by_first = by_second @ w1.T * (1 - first**2)
        gradient = [points.T @ by_first, by_first.sum(0), first.T @ by_second, by_second.sum(0)]
        gradient += [second.T @ by_output, by_output.sum(0)]
        for p, m, s, g in zip(parameters, means, squares, gradient, strict=True):
            m += 0.1 * (g - m)
            s += 0.001 * (g * g - s)
            p -= 3e-3 * (m / (1 - 0.9 ** (step + 1))) / (np.sqrt(s / (1 - 0.999 ** (step + 1))) + 1e-8)
    return losses, parameters


def first_parameters():
    rng = np.random.default_rng(2)
    for m, n in ((2, 32), (32, 32), (32, 1)):
        yield rng.normal(0, 2 / np.sqrt(m), (m, n))
        yield np.zeros(n)


@pytest.mark.parametrize("ranks", [2, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 4))])
def test_against_numpy(computed, ranks):
    out, data = computed(ranks, "training", *SMALL, JAX_ENABLE_X64="1")
    losses, parameters = train(list(zip(data["points"], data["sides"], strict=True)), 4, first_parameters())
    np.testing.assert_allclose(data["losses"].ravel(), losses, rtol=1e-9)
    assert np.mean(losses[-3:]) < 0.9 * np.mean(losses[:3])
    for name, expected in zip(("w0", "b0", "w1", "b1", "w2", "b2"), parameters, strict=True):
        # Adam divides by the root of the gradient's square, which is a small number at first.
        np.testing.assert_allclose(data[name], expected, atol=1e-6)
    assert f"12 steps on {ranks} rank(s): loss {losses[0]:.4f} to {losses[-1]:.4f}" in out
    assert float(out.split("at most ")[1].split()[0]) < 1e-9


def test_processes_that_drift_apart_are_reported(job):
    """Learn without pvary: each process learns from its own points then, with a loss that falls."""
    code = (ROOT / "examples/training.py").read_text()
    right = "parameters = mpixla.pvary(parameters, comm=comm)"
    assert code.count(right) == 1
    done = job(2, code.replace(right, ""), *SMALL, check=False, PYTHONPATH=str(ROOT / "examples"))
    assert done.returncode == 1
    assert "assert_replicated: leaf [0][0][0] of shape (2, 32)" in done.stderr
    assert "is not the same on all ranks of communicator 'MPI_COMM_WORLD', at script.py:" in done.stderr
