"""The Python on documentation pages runs on any number of ranks, and prints what the pages show below it."""

import contextlib
import io
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import mpixla
import pages

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()

# Pages, or blocks of them by a word in their code, that run elsewhere, and where.
ELSEWHERE = {
    ("README.md", ""): "tests/launch/test_pages_commands.py, on four ranks",
    ("distributed.md", ""): "tests/launch/test_distributed.py, since the launcher comes before JAX",
    ("gpu.md", ""): "tests/install/test_install.py, since it comes before JAX",
    ("migration.md", ""): "tests/launch/test_compat.py, since it changes how MPI's errors end",
    ("other_tools.md", "import orbax"): "tests/ecosystem/test_checkpoints.py, since it takes a library",
    ("other_tools.md", "MPIPoolExecutor"): "tests/launch/test_import.py, since it takes a launcher of its own",
    ("solvers.md", ""): "tests/spmd/test_solvers.py and tests/ecosystem, which compare it with NumPy",
    ("trouble.md", "# program.py"): "tests/launch/test_pages_commands.py, since it hangs",
    ("trouble.md", "comm.Shrink"): "tests/launch/test_survive.py, which runs the program that this is the core of",
}


def known(page):
    """Return the names that a page takes for known, since its subject is another."""
    names = {"jax": jax, "jnp": jnp, "mpixla": mpixla, "MPI": MPI, "x": jnp.arange(3.0), "comm": WORLD}
    match page:
        case "exact.md":
            return names
        case "other_tools.md":
            around = {"source": (RANK - 1) % SIZE, "dest": (RANK + 1) % SIZE}
            return names | around | {"f": lambda x: mpixla.allreduce(x, op=MPI.SUM)}
        case "performance.md":
            return names | {"u": jnp.ones((4, 3)), "south": (RANK - 1) % SIZE, "north": (RANK + 1) % SIZE}
        case "reference.md":
            line = WORLD.Create_cart([SIZE], periods=[True])
            return names | {"comm": line, "x": jnp.full(4, 1.0 + RANK), "step": lambda x: x[1:-1] * 2}
        case "trouble.md":
            return names | {"params": {"w": jnp.ones(2)}}
    return {}


def on_all_ranks(x):
    """Return the arrays of all ranks, in double precision."""
    return np.stack(WORLD.allgather(np.asarray(x, np.float64)))


def jacobian_of_fun(x):
    """Return in NumPy, at [r, i, q, j], the derivative of entry i of rank r's result by entry j of rank q's."""
    jacobian = np.zeros((*x.shape, *x.shape))
    for (r, i), own in np.ndenumerate(x):
        above = (r + 1) % len(x)
        jacobian[r, i, above, i] += np.cos(x[above, i]) * x[r, 0]
        jacobian[r, i, r, 0] += np.sin(x[above, i])
        jacobian[r, i, r, i] += 2 * own * np.sum(x**2)
        jacobian[r, i] += own**2 * 2 * x
    return jacobian


def where(block):
    """Return the place where else a block runs, or None."""
    return next((how for (page, word), how in ELSEWHERE.items() if page == block.page and word in block.text), None)


def here(page):
    return [block for block in pages.blocks(page, "python") if where(block) is None]


@contextlib.contextmanager
def in_one_folder(tmp_path):
    """Move all ranks to the same new folder during the with body."""
    before = os.getcwd()
    os.chdir(WORLD.bcast(str(tmp_path), 0))
    yield
    WORLD.Barrier()
    os.chdir(before)


def run(block, names):
    """Run a block and return its output; an exception in it names the line of the page."""
    printed = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, f"docs/{block.page}", "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def check_derivatives(names):
    """Compare the results of the three conventions and of the Jacobians with NumPy's for the arrays of all ranks."""
    w, data, target, u, x, weights = (
        on_all_ranks(names[name]) for name in ("w", "data", "target", "u", "x", "weights_of_this_rank")
    )
    wanted = sum(2 * d.T @ (d @ w[0] - t) for d, t in zip(data, target, strict=True))
    np.testing.assert_allclose(names["gradient_of_parameters"], wanted, rtol=1e-4)
    slopes = u.ravel() - np.roll(u.ravel(), 1)
    wanted = 2 * (slopes - np.roll(slopes, -1))
    np.testing.assert_allclose(names["gradient_of_field"], wanted.reshape(u.shape)[RANK], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(names["gradient_of_all"], weights.sum(0), rtol=1e-5)
    jacobian = jacobian_of_fun(x)
    assert names["rows"].shape == names["columns"].shape == (SIZE, 3, 3)
    np.testing.assert_allclose(np.moveaxis(names["rows"], 2, 0), jacobian[RANK], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(names["columns"], jacobian[:, :, RANK], rtol=1e-4, atol=1e-5)


def check_refusal(names):
    """Check that mpi4py refuses JAX arrays, as docs/other_tools.md says."""
    with pytest.raises(KeyError, match="MPI datatype"):
        MPI.COMM_SELF.Bcast(names["x"], 0)


CHECKS = {"derivatives.md": check_derivatives, "other_tools.md": check_refusal}


@pytest.mark.parametrize("page", [page for page in pages.PAGES if here(page)], ids=lambda page: page.stem)
def test_page(page, tmp_path):
    with in_one_folder(tmp_path), jax.enable_x64(False):
        names = {"__name__": page.stem, **known(page.name)}
        for block in here(page):
            printed = run(block, names)
            if RANK == 0 and block.output is not None:
                assert printed == block.output, block.place
    if page.name in CHECKS:
        CHECKS[page.name](names)


def run_without_pvary(page, names):
    for block in here(pages.DOCS / page):
        run(block._replace(text=block.text.replace(" = mpixla.pvary(", " = (")), names)


@pytest.mark.two_ranks
@pytest.mark.parametrize("page", ["derivatives.md", "tutorial.md"])
def test_pages_notice_a_missing_pvary(page, tmp_path):
    """Leave pvary out: gradients cover one rank's data then, and the step that the page shows for this case raises."""
    raised = pytest.raises(Exception, match=r"assert_replicated: .* is not the same on all ranks")
    with in_one_folder(tmp_path), jax.enable_x64(False), raised:
        run_without_pvary(page, {"__name__": page, **known(page)})


@pytest.mark.two_ranks
def test_each_row_of_elsewhere_has_a_block_and_a_file():
    """Each row of the table belongs to a block, and names a file or folder that exists."""
    blocks = [block for page in pages.PAGES for block in pages.blocks(page, "python")]
    for (page, word), how in ELSEWHERE.items():
        assert any(block.page == page and word in block.text for block in blocks), (page, word)
        for file in re.findall(r"tests/[\w/]+(?:\.py)?", how):
            assert (pages.ROOT / file).exists(), file
    assert not any(block.output for block in blocks if where(block))
