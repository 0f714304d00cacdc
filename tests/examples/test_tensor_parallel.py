"""examples/tensor_parallel.py: its gradients are finite differences of the whole network in NumPy, on 1 to 4 ranks."""

import numpy as np
import pytest

SMALL = ("--hidden", "12", "--steps", "20", "--size", "6")
RATE = 0.02


def network(parameters, places):
    x = places @ parameters["first"]
    for i in range(3):
        scale, w1, bias, w2 = (parameters[f"block {i} {name}"] for name in ("scale", "W1", "bias", "W2"))
        centred = x - x.mean(1)[:, None]
        hidden = centred / (np.sqrt((centred**2).mean(1)) + 1e-3)[:, None] * scale @ w1 + bias
        x = x + hidden / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3))) @ w2
    return x @ parameters["last"]


def first_parameters(hidden):
    rng = np.random.default_rng(1)
    parameters = {}
    for i in range(3):
        parameters[f"block {i} W1"] = rng.standard_normal((32, hidden)) / np.sqrt(32)
        parameters[f"block {i} W2"] = rng.standard_normal((hidden, 32)) / np.sqrt(hidden)
        parameters[f"block {i} bias"], parameters[f"block {i} scale"] = np.zeros(hidden), np.ones(32)
    parameters["first"] = rng.standard_normal((32, 32)) / np.sqrt(32)
    parameters["last"] = rng.standard_normal(32) / np.sqrt(32)
    return parameters


def picture(size):
    y, x = np.divmod(np.arange(size * size), size)
    x, y = (x + 0.5) / size, (y + 0.5) / size
    k = np.pi * np.arange(1, 9)
    places = np.hstack([np.sin(x[:, None] * k), np.cos(x[:, None] * k), np.sin(y[:, None] * k), np.cos(y[:, None] * k)])
    rings = [np.sqrt((x - a) ** 2 + (y - b) ** 2) for a, b in ((0.3, 0.35), (0.75, 0.7))]
    return places, sum(np.exp(-3 * r) * np.cos(30 * r) for r in rings)


@pytest.mark.parametrize("ranks", [2, 1, 4])
def test_against_numpy(computed, ranks):
    out, data = computed(ranks, "tensor_parallel", *SMALL, JAX_ENABLE_X64="1")
    places, values = picture(6)
    parameters = first_parameters(12)

    def loss():
        return np.mean((network(parameters, places) - values) ** 2)

    np.testing.assert_allclose(data["losses"][0], loss(), rtol=1e-12)
    rng = np.random.default_rng(3)
    for name, array in parameters.items():
        gradient = data[f"gradient {name}"]
        assert gradient.shape == array.shape
        for i in rng.choice(array.size, 8, replace=False):
            at, here = np.unravel_index(i, array.shape), array.flat[i]
            around = []
            for step in (1e-5, -1e-5):
                array[at] = here + step
                around.append(loss())
            array[at] = here
            slope = (around[0] - around[1]) / 2e-5
            np.testing.assert_allclose(gradient[at], slope, rtol=1e-6, atol=1e-9, err_msg=f"{name} {at}")
    for name in parameters:
        parameters[name] -= RATE * data[f"gradient {name}"]
    np.testing.assert_allclose(data["losses"][1], loss(), rtol=1e-12)

    assert data["losses"][-1] < 0.5 * data["losses"][0]
    np.testing.assert_allclose(data["losses"], data["alone"], rtol=1e-9)
    trained = {name: data[f"trained {name}"] for name in parameters}
    np.testing.assert_allclose(network(trained, places), data["fit"], atol=1e-12)
    whole = sum(map(np.size, parameters.values()))
    split = sum(array.size for name, array in parameters.items() if name.split()[-1] in ("W1", "W2", "bias"))
    own = whole - split + split // ranks
    assert f"{own} of {whole} parameters on each of {ranks} rank(s)" in out
    assert float(out.split("at most ")[1].split()[0]) < 1e-12
