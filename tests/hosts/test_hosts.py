"""Jobs on two hosts, with TCP between them: what works on one must work there."""

import os
import re
import sys
import textwrap
import time
from pathlib import Path

import network
import numpy as np
import pytest
from conftest import FAMILY

import pages
from jobs import facts
from mpixla.base.cores import find_cores
from mpixla.trace.read import read_file

ROOT = Path(__file__).parents[2]
MAIN = "import runpy; runpy.run_module('mpixla', run_name='__main__', alter_sys=True)\n"
PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))\n"

# The core of tests/spmd: what depends on how messages travel, rather than on what JAX makes of the programs. The
# self-test makes every call.
CORE = (
    "test_halo.py",
    "test_neighbor.py",
    "test_order.py",
    "test_requests.py",
    "test_status.py",
    "test_threads.py",
    "test_vector.py",
)


@pytest.mark.parametrize("check", ["0", "1"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_selftest(hosts_job, ranks, check):
    lines = hosts_job(ranks, MAIN, "test", MPIXLA_CHECK=check).stdout.splitlines()
    assert lines[-1].endswith(f"checks passed on {ranks} ranks."), lines


def test_run(hosts_job, hosts):
    """``python -m mpixla run --hosts``: each rank has cores of its own host, and the variables that it should."""
    code = """
    import os, jax.numpy as jnp, mpixla
    from mpi4py import MPI
    total = mpixla.allreduce(jnp.arange(2) + MPI.COMM_WORLD.rank, op=MPI.SUM).tolist()
    cpus = len(os.sched_getaffinity(0))
    print(MPI.COMM_WORLD.rank, MPI.Get_processor_name(), total, os.environ["MPIXLA_TIMEOUT"], cpus)
    """
    through = {"mpich": "-launcher ssh -launcher-exec", "openmpi": "--prtemca plm_ssh_agent"}[FAMILY]
    launch = [sys.executable, "-m", "mpixla", "run", "-n", 4, "--hosts", ",".join(network.NAMES), "--timeout", 90]
    said = hosts_job(4, code, launch=[*launch, "--launcher-args", f"{through} {hosts.ssh}"]).stdout.splitlines()
    mine = find_cores()
    cpus = len(set().union(*mine[: len(mine) // 2])) if len(mine) > 1 else len(mine[0])
    assert sorted(said) == [f"{r} {network.NAMES[r // 2]} [6, 10] 90 {cpus}" for r in range(4)]


def test_script_for_pbs(hosts_job, hosts, tmp_path, site):
    """docs/clusters.md's, with the variables and the file that PBS gives to a job."""
    script, nodes = tmp_path / "job.sh", tmp_path / "nodes"
    script.write_text(pages.block(pages.DOCS / "clusters.md", "#PBS").text)
    nodes.write_text("".join(f"{name}\n" * 2 for name in network.NAMES))
    code = """
    import jax.numpy as jnp, mpixla
    from mpi4py import MPI
    print(MPI.COMM_WORLD.rank, MPI.Get_processor_name(), mpixla.allreduce(jnp.ones(2), op=MPI.SUM).tolist())
    """
    (tmp_path / "model.py").write_text(textwrap.dedent(code))
    path = f"{hosts.folder}:{os.defpath}"  # where `ssh` is the hosts' own
    pbs = {"PBS_O_WORKDIR": str(tmp_path), "PBS_NODEFILE": str(nodes)}
    said = hosts_job(4, script, launch=["bash"], PATH=path, **pbs, **site).stdout.splitlines()
    assert sorted(said) == [f"{r} {network.NAMES[r // 2]} [4.0, 4.0]" for r in range(4)]


@pytest.mark.parametrize("ranks", [2, 3])
def test_info(hosts_job, ranks):
    said = facts(hosts_job(ranks, MAIN).stdout)
    a, b = network.NAMES
    assert said["ranks"] == f"{ranks} ({ranks - 1} on {a}, 1 on {b})"


def test_info_when_messages_do_not_arrive(hosts_job, link, until_mark):
    """MPI has started, so mpixla can say so."""
    code = """
    import sys, time
    from pathlib import Path
    from mpixla import __main__
    from mpixla.tools import info
    info._PATIENCE = 3
    Path("mark").touch()
    time.sleep(2)
    sys.exit(__main__.main([]))
    """

    def during():
        until_mark()
        link.set_link(False)
        time.sleep(8)
        link.set_link(True)

    done = hosts_job(2, code, check=False, during=during)
    assert done.returncode != 0
    assert "mpixla: MPI has started, but messages between the ranks have not arrived within 3 s, so the job ends." in (
        done.stderr
    )


@pytest.mark.skipif(FAMILY != "openmpi", reason="Open MPI alone takes addresses of other networks for reachable")
def test_network_that_does_not_connect_the_hosts(hosts_job, hosts):
    """As with Docker: both hosts have one with the same address. The import waits, and says so."""
    name, inside = "docker0", "inside"
    for host in hosts.hosts:
        host.network("ip", "link", "add", name, "type", "veth", "peer", "name", inside)
        host.network("ip", "address", "add", "172.17.0.1/16", "dev", name)
        for device in (name, inside):
            host.network("ip", "link", "set", device, "up")
    try:
        done = hosts_job(2, MAIN, check=False, MPIXLA_TIMEOUT="1")
        assert done.returncode != 0
        sentence = r"rank \d has waited for 20 s in `import mpixla`.* has chosen a network that does not"
        assert re.search(sentence, done.stderr), done.stderr
        said = facts(hosts_job(2, MAIN, options=["--mca", "btl_tcp_if_include", network.DEVICE]).stdout)
        assert said["ranks"].startswith("2 (1 on ")
    finally:
        for host in hosts.hosts:
            host.network("ip", "link", "delete", name)


def test_bench(hosts_job):
    lines = hosts_job(2, f"from mpixla.tools import bench; bench._SECONDS = 0.002\n{MAIN}", "bench").stdout.splitlines()
    assert lines[0].startswith("mpixla bench: 2 ranks on 2 hosts, ")
    assert len(lines) == 8


@pytest.mark.timeout(450)
@pytest.mark.parametrize("file", CORE)
def test_core(hosts_job, file):
    options = ["-q", "-c", ROOT / "pyproject.toml", "--rootdir", ROOT]
    hosts_job(2, PYTEST, *options, ROOT / "tests" / "spmd" / file, timeout=400)


def test_example(hosts_job, tmp_path):
    """The same result as that of one rank."""
    model = ROOT / "examples" / "shallow_water.py"
    code = """
    import runpy, sys
    import jax, numpy as np
    from mpi4py import MPI
    jax.config.update("jax_enable_x64", True)
    sys.path.insert(0, sys.argv[1])
    import shallow_water as model
    fields = model.simulate(MPI.COMM_WORLD, 24, 36, 200, lambda block: model.jet(block, waves=0.2))
    if MPI.COMM_WORLD.rank == 0:
        np.save(sys.argv[2], fields)
    """
    saved = []
    for ranks in (1, 2, 4):
        saved.append(tmp_path / f"{ranks}.npy")
        hosts_job(ranks, code, model.parent, saved[-1])
    alone, *shared = map(np.load, saved)
    assert abs(alone).max() > 0.1
    for fields in shared:
        np.testing.assert_allclose(fields, alone, rtol=0, atol=1e-11)


def test_example_as_it_is(hosts_job):
    model = ROOT / "examples" / "shallow_water.py"
    done = hosts_job(2, model, "--benchmark", "--size", 20, 30, "--days", 0.01)
    assert re.fullmatch(r"\d+\.\d+ s for 43 time steps of 20 x 30 cells, 2 process\(es\)\n", done.stdout)


# From any rank, of messages that are there already.
ANY = {
    "recv": "mpixla.send(x, 1 - rank); time.sleep(0.5); y = mpixla.recv(x)",
    "sendrecv": "time.sleep(rank); y = mpixla.sendrecv(x, x, MPI.ANY_SOURCE, 1 - rank)",
    "irecv": "mpixla.send(x, 1 - rank); time.sleep(0.5); y = mpixla.wait(mpixla.irecv(x))",
}


@pytest.mark.parametrize("check", ["0", "1"])
@pytest.mark.parametrize("call", ANY)
def test_any_source(hosts_job, call, check):
    variables = {"MPIXLA_CHECK": check}
    if FAMILY == "mpich" and call == "irecv":
        variables["MPIR_CVAR_CH4_NETMOD"] = "ofi"  # docs/clusters.md
    done = hosts_job(
        2,
        f"""
        import time
        from mpi4py import MPI
        import jax, jax.numpy as jnp
        import mpixla
        rank = MPI.COMM_WORLD.rank
        for x in (jnp.full(3, rank + 1.0), jnp.full(5000, rank + 1.0)):
            {ANY[call]}
            assert (y == 2 - rank).all()
        print("fine")
        """,
        timeout=40,
        **variables,
    )
    assert done.stdout.split() == ["fine", "fine"]


def test_local_ranks(hosts_job):
    """MPI and Python agree about who is on which host: select_local_gpu counts on it."""
    done = hosts_job(
        4,
        """
        from mpi4py import MPI
        import mpixla
        local = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
        print(MPI.COMM_WORLD.rank, local.rank, local.size, MPI.Get_processor_name())
        """,
    )
    a, b = network.NAMES
    assert sorted(done.stdout.splitlines()) == [f"0 0 2 {a}", f"1 1 2 {a}", f"2 0 2 {b}", f"3 1 2 {b}"]


def test_ranks_of_one_host_share_memory(hosts_job):
    """And those of several do not, all of whose calls MPI makes."""
    done = hosts_job(
        4,
        """
        from pathlib import Path
        from mpi4py import MPI
        import jax.numpy as jnp, mpixla
        world = MPI.COMM_WORLD
        for comm in world, world.Split_type(MPI.COMM_TYPE_SHARED):
            total = mpixla.allreduce(jnp.ones(()), op=MPI.SUM, comm=comm)
            print(world.rank, total, Path("/proc/self/maps").read_text().count("/dev/shm/mpixla-"))
        """,
    )
    assert sorted(done.stdout.splitlines()) == sorted(f"{r} {said}" for r in range(4) for said in ("4.0 0", "2.0 1"))


def test_timelines_have_one_clock(hosts_job, tmp_path):
    """The second host's clock is another. A call of all ranks ends nowhere before the last of them has begun it."""
    hosts_job(
        2,
        """
        import time
        from mpi4py import MPI
        import mpixla
        mpixla.barrier()
        for i in range(5):
            if MPI.COMM_WORLD.rank == i % 2:
                time.sleep(0.2)
            mpixla.barrier()
        """,
        MPIXLA_TRACE=str(tmp_path / "trace"),
    )
    begins, ends, error = {}, {}, 0
    for rank in (0, 1):
        timeline = read_file(tmp_path / "trace" / f"rank-{rank:04}.trace")
        assert bool(timeline.readings) == bool(rank)
        ahead = 0
        if timeline.readings:
            _, ahead, error = timeline.readings[-1]
            assert round(ahead / 1e9) == -network.SECONDS_AHEAD
        for call in timeline.calls:
            if call.name == "barrier":
                begins.setdefault(call.sequence, []).append(call.begin + ahead)
                ends.setdefault(call.sequence, []).append(call.end + ahead)
    assert len(begins) == 6
    for sequence in begins:
        assert max(begins[sequence]) <= min(ends[sequence]) + error


@pytest.mark.parametrize(("ranks", "shape"), [(2, (2,)), (4, (4,)), (4, (2, 2))])
def test_jax_s_own_collectives(hosts_job, ranks, shape):
    """A program that runs on one host, unchanged: JAX makes no mesh of CPUs of several hosts."""
    code = f"""
    import jax, jax.numpy as jnp, mpixla
    import numpy as np
    from functools import partial
    from jax.sharding import NamedSharding, PartitionSpec as P
    from mpi4py import MPI

    jax.distributed.initialize()
    names = ("i", "j")[:{len(shape)}]
    mesh = jax.make_mesh({shape}, names)
    assert mesh.axis_types == jax.make_mesh((1,), ("i",), devices=jax.local_devices()).axis_types * len(names)
    assert mesh.devices.ravel().tolist() == jax.devices() and mesh.axis_names == names
    whole = np.arange(8.0).reshape(4, 2) ** 2
    x = jax.make_array_from_callback(whole.shape, NamedSharding(mesh, P(names)), lambda index: whole[index])
    print("sum", float(jax.jit(jnp.sum)(x)), flush=True)

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=P(names), out_specs=P(names))
    def both(x):
        return jax.lax.psum(x, names) - mpixla.allreduce(x, op=MPI.SUM)

    assert not np.asarray(both(x).addressable_shards[0].data).any()
    try:
        jax.make_mesh(({2 * ranks},), ("i",))
    except ValueError as e:
        assert "devices" in str(e)
    """
    done = hosts_job(ranks, code, module="mpixla.distributed")
    assert done.stdout.splitlines() == ["sum 140.0"] * ranks


def test_meeting_without_names(hosts_job):
    """Their network leads nowhere else, and their names to nothing: what is left are the devices' addresses."""
    code = """
    import socket
    import jax, mpixla.distributed

    find = socket.getaddrinfo

    def nobody_knows(name, *more):
        if name[0].isdigit():
            return find(name, *more)
        raise socket.gaierror(name)

    socket.getaddrinfo = nobody_knows
    mpixla.distributed.initialize()
    print("devices", jax.device_count())
    """
    assert hosts_job(2, code, module="mpixla.distributed").stdout.splitlines() == ["devices 2"] * 2
