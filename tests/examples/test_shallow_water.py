"""The shallow-water example: against a NumPy model of the whole domain, an exact wave, and on several ranks.

The module is also the program that the tests launch: it runs the CASES and saves the fields that rank 0 gathered.
"""

import functools
import re
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "examples" / "shallow_water.py"

# As in the example, which this process does not import because that would start MPI.
D, G, H, F0, BETA = 5e3, 9.81, 100.0, 2e-4, 2e-11
NU = 1e-3 * F0 * D**2
DT = 0.125 * D / np.sqrt(G * H)

RANKS = [1, 2, 3, 4]
# More ranks than cores: the threads of each would only be in the others' way.
ONE_THREAD = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
RNG = np.random.default_rng(1)


def rough(ny, nx):
    """Return a random state of large amplitude, whose v vanishes at the northern wall."""
    eta, u, v = RNG.uniform(-1, 1, (3, ny, nx)) * [[[5]], [[3]], [[3]]]
    v[-1] = 0
    return eta, u, v


def kelvin(ny, nx, time):
    """Return a Kelvin wave, an exact linear solution along the southern wall that runs east at speed sqrt(G H)."""
    y, x = (np.indices((ny, nx)) + 0.5) * D
    c = np.sqrt(G * H)
    k = 2 * np.pi / (nx * D)
    decay = 1e-3 * np.exp(-(F0 * y + BETA * y**2 / 2) / c)
    # u is half a cell further east than eta.
    return decay * np.cos(k * (x - c * time)), G / c * decay * np.cos(k * (x + D / 2 - c * time)), 0 * x


# From a name to ny, nx, steps, and the initial fields, or a number for the amplitude of the example's jet's waves.
CASES = {
    "jet": (24, 36, 300, 0.2),
    "odd": (23, 37, 200, rough(23, 37)),
    "tiny": (6, 7, 200, rough(6, 7)),
}
# These need only one rank, as the others show that more give the same.
CASES_ON_ONE_RANK = {
    "rest": (12, 18, 100, np.zeros((3, 12, 18))),
    "calm jet": (48, 12, 300, 0.0),
    "kelvin": (60, 36, 288, kelvin(60, 36, 0)),  # runs one cell in 8 steps
}


def run_cases(file):
    import jax
    from mpi4py import MPI

    jax.config.update("jax_enable_x64", True)
    sys.path.insert(0, str(MODEL.parent))
    import shallow_water as model

    def initial(fields, block):
        if isinstance(fields, float):
            return model.jet(block, waves=fields)
        return model.Fields(*(f[block.cells] for f in fields))

    results = {}
    alone = MPI.COMM_WORLD.size == 1
    for name, (ny, nx, steps, fields) in (CASES | CASES_ON_ONE_RANK if alone else CASES).items():
        begin = functools.partial(initial, fields)
        if alone:
            results[f"{name} first"] = model.simulate(MPI.COMM_WORLD, ny, nx, 0, begin)
        results[f"{name} last"] = model.simulate(MPI.COMM_WORLD, ny, nx, steps, begin)
    if MPI.COMM_WORLD.rank == 0:
        np.savez(file, **results)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return a function from a number of ranks to the results of the example."""
    from jobs import start  # which the program that this module is cannot import

    known = {}

    def get(ranks):
        if ranks not in known:
            file = tmp_path_factory.mktemp("fields") / "fields.npz"
            start(ranks, __file__, file, timeout=300, **ONE_THREAD)
            with np.load(file) as fields:
                known[ranks] = dict(fields)
        return known[ranks]

    return get


# A model of the whole domain, independent of the example: v has both walls' rows, and ghost rows are explicit.


def east(a):
    return np.roll(a, -1, axis=1)


def west(a):
    return np.roll(a, 1, axis=1)


def rates(eta, u, v):
    """Return the rates of eta and u, [ny, nx], and of v, [ny + 1, nx], where v[j] is on the southern face of row j."""
    ny = len(eta)
    h = np.pad(H + eta, ((1, 1), (0, 0)), "edge")  # h[j + 1] is row j
    wide_u = np.pad(u, ((1, 1), (0, 0)), "edge")
    flux_x = u * (H + eta + H + east(eta)) / 2
    flux_y = v * (h[1:] + h[:-1]) / 2
    corner_h = (h[1:] + h[:-1] + east(h[1:]) + east(h[:-1])) / 4
    f = F0 + BETA * D * np.arange(ny + 1)[:, None]
    q = (f + (east(v) - v) / D - (wide_u[1:] - wide_u[:-1]) / D) / corner_h
    energy = G * eta + (u**2 + west(u) ** 2 + v[1:] ** 2 + v[:-1] ** 2) / 4

    d_eta = -(flux_x - west(flux_x) + flux_y[1:] - flux_y[:-1]) / D
    turn = q * (flux_y + east(flux_y)) / 2
    friction_u = (east(u) + west(u) + wide_u[2:] + wide_u[:-2] - 4 * u) / D**2
    d_u = (turn[1:] + turn[:-1]) / 2 - (east(energy) - energy) / D + NU * friction_u
    inner = v[1:-1]
    turn = q[1:-1] * (flux_x[1:] + flux_x[:-1]) / 2
    friction_v = (east(inner) + west(inner) + v[2:] + v[:-2] - 4 * inner) / D**2
    d_v = np.zeros_like(v)
    d_v[1:-1] = -(turn + west(turn)) / 2 - (energy[1:] - energy[:-1]) / D + NU * friction_v
    return d_eta, d_u, d_v


def reference(fields, steps):
    eta, u, v = (np.array(f) for f in fields)
    v = np.pad(v, ((1, 0), (0, 0)))
    state = [eta, u, v]
    before = rates(*state)
    for _ in range(steps):
        now = rates(*state)
        state = [s + DT * (1.6 * n - 0.6 * b) for s, n, b in zip(state, now, before, strict=True)]
        before = now
    eta, u, v = state
    return np.array([eta, u, v[1:]])


@pytest.mark.parametrize("case", CASES)
def test_against_numpy(results, case):
    _, _, steps, _ = CASES[case]
    first, last = results(1)[f"{case} first"], results(1)[f"{case} last"]
    assert abs(last - first).max() > 0.1
    np.testing.assert_allclose(last, reference(first, steps), rtol=0, atol=1e-10)


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_same_on_any_number_of_ranks(results, ranks):
    for name in CASES:
        alone, shared = (results(n)[f"{name} last"] for n in (1, ranks))
        np.testing.assert_allclose(shared, alone, rtol=0, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("ranks", RANKS)
def test_mass_is_conserved(results, ranks):
    for name in CASES:
        first, last = results(1)[f"{name} first"], results(ranks)[f"{name} last"]
        assert abs((last[0] - first[0]).mean()) < 1e-14 * H, name


def test_field_at_rest_stays_at_rest(results):
    assert not results(1)["rest last"].any()


def test_jet_is_in_balance(results):
    first, last = results(1)["calm jet first"], results(1)["calm jet last"]
    assert first[1].max() > 9
    # The balance that the jet starts from is that of small slopes, so some weak waves remain.
    assert abs(last[1] - first[1]).max() < 0.01
    assert abs(last[2]).max() < 0.01
    assert np.ptp(last, axis=2).max() < 1e-10  # nothing happens along the jet


def test_kelvin_wave(results):
    ny, nx, steps, initial = CASES_ON_ONE_RANK["kelvin"]
    last = results(1)["kelvin last"]
    for field, exact in zip(last, kelvin(ny, nx, steps * DT), strict=True):
        assert abs(field - exact).max() < 0.02 * abs(initial[0]).max()


# The command line.


def test_defaults_show_eddies(job, tmp_path):
    """In the end the jet, which ran straight east, goes north and south several times, fast."""
    file = tmp_path / "v.npy"
    code = f"""
import sys
sys.path.insert(0, {str(MODEL.parent)!r})
import numpy as np
import shallow_water as model
args = model.parse(model.MPI.COMM_WORLD)
fields = model.simulate(model.MPI.COMM_WORLD, *args.size, int(args.days * 86400 / {DT}))
if fields:
    np.save({str(file)!r}, fields.v)
"""
    job(2, code, timeout=300, **ONE_THREAD)
    v = np.load(file)
    assert v.max() > 3
    assert v.min() < -3
    north = v[len(v) // 2] > 0
    assert np.count_nonzero(north[1:] != north[:-1]) >= 6


def test_files(example, tmp_path):
    from PIL import Image

    png, gif = tmp_path / "new" / "last.png", tmp_path / "film.gif"
    out = example(2, "shallow_water", "--size", 20, 30, "--days", 0.002, "--save", png, "--save", gif).stdout
    assert str(png) in out
    assert str(gif) in out
    assert "mass changed by" in out
    for file, frames in ((png, 1), (gif, 10)):  # a picture at the beginning and after each of 9 steps
        with Image.open(file) as image:
            image.load()
            assert getattr(image, "n_frames", 1) == frames
            assert min(image.size) > 300
            assert len(image.convert("RGB").getcolors(1 << 20)) > 20


def test_benchmark(example):
    out = example(2, "shallow_water", "--benchmark", "--size", 20, 30, "--days", 0.01).stdout
    assert re.fullmatch(r"\d+\.\d+ s for 43 time steps of 20 x 30 cells, 2 process\(es\)\n", out)


if __name__ == "__main__":
    run_cases(sys.argv[1])
