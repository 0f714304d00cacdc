"""Jobs that Slurm starts on two hosts, as docs/clusters.md says."""

import os
import re
import shlex
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import network
import pytest
from conftest import FAMILY, GRACE
from slurm import Slurm

import pages
from jobs import facts

LANGUAGE = {"mpich": "pmi2", "openmpi": "pmix"}[FAMILY]
SRUN = f"srun --nodes=2 --ntasks=2 --mpi={LANGUAGE}"
A, B = network.NAMES

STEPS = """
import os, signal, sys, time
import jax, jax.numpy as jnp, mpixla
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
step = jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM))
step(jnp.ones(3)).block_until_ready()
if rank == 1 and sys.argv[1:] == ["raise"]:
    raise RuntimeError("on purpose")
if rank == 1 and sys.argv[1:] == ["kill"]:
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 1 and sys.argv[1:] == ["sleep"]:
    time.sleep(1000)
print("rank", rank, step(jnp.ones(3)).tolist())
"""


@pytest.fixture(scope="module")
def slurm(hosts):
    try:
        made = Slurm(hosts)
    except network.CannotBeMadeError as e:
        pytest.skip(f"there is no Slurm here: {e}")
    said = made.run(f"srun --mpi={LANGUAGE} true")
    if said.returncode != 0:
        made.stop()
        pytest.skip(f"Slurm cannot start this MPI (on Debian: apt-get install libpmix-dev): {said.stderr}")
    yield made
    made.stop()


@pytest.fixture
def run(slurm, hosts, tmp_path):
    """Run a shell command, in which `python` is this one: run(command, **environment) -> CompletedProcess.

    One that does not end in time, or leaves processes, fails the test.
    """
    (tmp_path / "steps.py").write_text(STEPS)
    daemons = {number for lines in hosts.processes().values() for number in lines}

    def left():
        return [line for lines in hosts.processes().values() for n, line in lines.items() if n not in daemons]

    def run(command, timeout=100, **environment):
        words = {
            "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            **environment,
        }
        exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in words.items())
        try:
            return slurm.run(f"{exports}cd {shlex.quote(str(tmp_path))}; {command}", timeout)
        except subprocess.TimeoutExpired as e:
            slurm.run("scancel --signal=KILL --user=root")
            pytest.fail(f"the command did not end within {timeout} s\n-- stdout\n{e.stdout}\n-- stderr\n{e.stderr}")

    yield run
    until = time.monotonic() + GRACE
    while left() and time.monotonic() < until:
        time.sleep(0.1)
    assert not left()


@pytest.mark.parametrize("launch", [SRUN, "salloc --nodes=2 --ntasks=2 mpirun -n 2"], ids=["srun", "mpirun"])
def test_info(run, launch):
    done = run(f"{launch} python -m mpixla")
    assert done.returncode == 0, done.stderr
    said = facts(done.stdout)
    assert said["ranks"] == f"2 (1 on {A}, 1 on {B})"


@pytest.mark.parametrize("ranks", [[], ["-n", "4"]], ids=["as allocated", "four"])
def test_run(run, ranks):
    """``python -m mpixla run`` in an allocation is srun."""
    done = run(
        shlex.join(
            ["salloc", "--nodes=2", "--ntasks=2", "--overcommit", "python", "-m", "mpixla", "run", *ranks, "steps.py"]
        )
    )
    assert done.returncode == 0, done.stderr
    number = 4 if ranks else 2
    assert sorted(done.stdout.splitlines()) == [f"rank {r} {[float(number)] * 3}" for r in range(number)]
    shown = run("salloc --nodes=2 --ntasks=2 python -m mpixla run --dry-run steps.py")
    assert f"srun --mpi={LANGUAGE} --cpu-bind=cores " in shown.stdout


def test_selftest(run):
    done = run(f"{SRUN} python -m mpixla test")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("checks passed on 2 ranks.")


@pytest.mark.parametrize("start", [f"srun --mpi={LANGUAGE} python", "python -m mpixla run"], ids=["srun", "run"])
def test_four_ranks_of_a_batch_job(run, tmp_path, start):
    script = f"""\
    #!/bin/bash
    #SBATCH --nodes=2
    #SBATCH --ntasks-per-node=2
    #SBATCH --output=out
    {start} steps.py
    """
    (tmp_path / "job.sh").write_text(textwrap.dedent(script))
    done = run("sbatch --wait job.sh")
    said = (tmp_path / "out").read_text()
    assert done.returncode == 0, said
    lines = [line for line in said.splitlines() if "lacks support for cpu binding" not in line]  # the tests' Slurm
    assert sorted(lines) == [f"rank {rank} [4.0, 4.0, 4.0]" for rank in range(4)]


def test_script_of_the_page(run, tmp_path, site):
    """docs/clusters.md's, on nodes with fewer processors."""
    (tmp_path / "job.sh").write_text(pages.block(pages.DOCS / "clusters.md", "#SBATCH").text)
    (tmp_path / "model.py").write_text(STEPS)
    done = run("sbatch --wait --ntasks-per-node=1 --cpus-per-task=1 --output=out job.sh", PATH=os.defpath, **site)
    said = (tmp_path / "out").read_text()
    assert done.returncode == 0, said
    lines = [line for line in said.splitlines() if line.startswith("rank")]
    assert sorted(lines) == [f"rank {rank} [2.0, 2.0, 2.0]" for rank in range(2)]


def test_jax_s_own_collectives(run, tmp_path):
    code = """
    import jax, jax.numpy as jnp
    jax.distributed.initialize()
    rows = jax.NamedSharding(jax.make_mesh((jax.device_count(),), ("i",)), jax.P("i"))
    x = jax.jit(lambda: jnp.arange(4.0), out_shardings=rows)()
    print(jax.process_count(), jax.jit(jnp.sum)(x))
    """
    (tmp_path / "sharded.py").write_text(textwrap.dedent(code))
    done = run(f"{SRUN} python -m mpixla.distributed sharded.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2 6.0"] * 2


def test_srun_that_does_not_know_the_mpi(run):
    done = run("srun --nodes=2 --ntasks=2 --mpi=none python -m mpixla")
    assert done.returncode != 0
    assert "2 processes were started by Slurm's srun, but each is an MPI job of its own." in done.stderr
    assert "srun --mpi=list" in done.stderr


def test_exception(run):
    done = run(f"{SRUN} python steps.py raise")
    assert done.returncode != 0
    assert "RuntimeError: on purpose" in done.stderr
    assert "rank 1 ended" in done.stderr


def test_killed(run):
    """srun ends the others, whether the MPI notices or not."""
    done = run(f"{SRUN} --kill-on-bad-exit python steps.py kill")
    assert done.returncode != 0
    assert re.search(f"{B}: task 1: Killed", done.stderr)


def test_time_limit(run):
    done = run(f"{SRUN} python steps.py sleep", MPIXLA_TIMEOUT="3")
    assert done.returncode != 0
    assert "Rank 1 has not come: it is in no call of mpixla" in done.stderr
    assert re.search(r"steps\.py:\d+ in <module>: time\.sleep\(1000\)", done.stderr)
