"""examples/conjugate_gradients.py: the temperature and its derivatives are those of a dense matrix in NumPy."""

import numpy as np
import pytest

SIZE = 12


def mean_and_temperature(k):
    """Solve by faces: each carries its conductivity times the difference of two cells, or of a cell and the edge."""
    y, x = (np.indices((SIZE, SIZE)) + 0.5) / SIZE
    heat = np.exp(-((x - 0.5) ** 2 + (y - 0.5) ** 2) / 0.005)
    numbers = np.pad(np.arange(SIZE * SIZE).reshape(SIZE, SIZE), 1, constant_values=-1)
    pairs = [*zip(numbers[1:, 1:-1].flat, numbers[:-1, 1:-1].flat, strict=True)]
    pairs += zip(numbers[1:-1, 1:].flat, numbers[1:-1, :-1].flat, strict=True)
    matrix = np.zeros((SIZE * SIZE, SIZE * SIZE), k.dtype)
    for pair in pairs:
        cells = [i for i in pair if i >= 0]
        conductivity = len(cells) / sum(1 / k.flat[i] for i in cells)
        for i in cells:
            matrix[i, i] += conductivity
        if len(cells) == 2:
            matrix[cells, cells[::-1]] -= conductivity
    temperature = np.linalg.solve(matrix, heat.ravel() / heat.sum())
    return temperature.mean(), temperature.reshape(SIZE, SIZE)


def conductivity():
    y, x = (np.indices((SIZE, SIZE)) + 0.5) / SIZE
    disks = [(0.28, 0.72, 0.16), (0.7, 0.62, 0.13), (0.42, 0.3, 0.12), (0.8, 0.22, 0.1)]
    return np.where(np.any([(x - a) ** 2 + (y - b) ** 2 < r**2 for a, b, r in disks], axis=0), 100.0, 1.0)


@pytest.mark.parametrize("ranks", [2, 1, 4])
def test_against_numpy(computed, ranks):
    out, data = computed(ranks, "conjugate_gradients", "--size", SIZE, "--tol", "1e-13")
    k = conductivity()
    assert 10 < (k > 1).sum() < 60
    _, temperature = mean_and_temperature(k)
    np.testing.assert_allclose(data["temperature"], temperature, rtol=1e-9)
    some = range(0, k.size, 5)  # in all rows and columns
    gradient = np.empty(len(some))
    for i, cell in enumerate(some):
        changed = k.astype(complex)
        changed.flat[cell] += 1e-30j  # the derivative of what is analytic, without the rounding of a difference
        gradient[i] = mean_and_temperature(changed)[0].imag / 1e-30
    np.testing.assert_allclose(data["gradient"].flat[some], gradient, rtol=1e-7, atol=1e-7 * abs(gradient).max())

    for name in ("plain", "preconditioned"):
        assert data[name][-1] <= 1e-13 * data[name][0] < data[name][-2]
    assert len(data["preconditioned"]) < len(data["plain"]) < 500
    assert f"{SIZE} x {SIZE} cells on " in out
    assert float(out.split("direct solution by ")[1].split()[0]) < 1e-9


@pytest.mark.long
def test_residuals_have_the_same_bits_on_any_number_of_ranks(example, tmp_path):
    found = []
    for ranks in (1, 2, 3, 4):
        example(ranks, "conjugate_gradients", "--size", 48, "--data", "out.npz")
        with np.load(tmp_path / "out.npz") as file:
            found.append({name: file[name].tobytes() for name in ("plain", "preconditioned", "temperature")})
    assert all(one == found[0] for one in found)
