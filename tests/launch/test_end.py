"""How jobs end: nobody hangs, nothing that was dispatched is lost."""

import re
import sys

import pytest
from mpi4py import MPI

from mpixla.checks import exit

# The report of ranks that end with an exception, which several tests expect.
UNCAUGHT = "mpixla: {} ended with an uncaught KeyError, so the whole job is aborted"

PREAMBLE = """
import jax, jax.numpy as jnp, mpixla, sys, os, signal, threading, time
from mpi4py import MPI
rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
"""


def test_uncaught_exception_ends_the_job(job):
    """The others wait in an allreduce that will never be answered."""
    done = job(
        3,
        f"""{PREAMBLE}
if rank == 1:
    raise KeyError("lost on rank 1")
jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM))(jnp.ones(3)).block_until_ready()
""",
        check=False,
    )
    assert done.returncode != 0
    assert "KeyError: 'lost on rank 1'" in done.stderr
    assert "rank 1 ended" in done.stderr
    assert "rank 0 ended" not in done.stderr


def test_error_of_all_ranks_is_printed_once_under_run(job, tmp_path):
    code = f"{PREAMBLE}\nmpixla.barrier()\nmpixla.allreduce(jnp.ones(3), op='sum')\n"
    done = job(8, code, check=False, by_run=True, options=("--no-pin",), TMPDIR=str(tmp_path))
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0].startswith("mpixla: ranks 0 to 7 ended with an uncaught TypeError, so the whole job is aborted.")
    assert lines[1] == "Traceback (most recent call last):"
    error = lines[5 if sys.version_info >= (3, 13) else 4]  # Python 3.13 marks the place in a line of its own
    assert error == "TypeError: op must be an mpi4py reduction (mpi4py.MPI.SUM, say), but is a str."
    assert done.stderr.count("Traceback") == done.stderr.count("TypeError: ") == 1
    assert len(lines) < 25
    assert not list(tmp_path.glob("mpixla-*"))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("(KeyError, KeyError, OSError)[rank]('no')", {"ranks 0 and 1": "KeyError: 'no'", "rank 2": "OSError: no"}),
        (
            "OSError(f'r{rank} | on rank {rank} of 3, not as on rank 0: {object()}')",
            {"ranks 0 to 2": "OSError: r. . on rank . of 3, not as on rank 0"},
        ),
        ("threading.Thread(target=work)", {"ranks 0 to 2": "KeyError: 'in a thread'"}),
    ],
)
def test_error_that_differs_is_printed_for_each_rank(job, what, said):
    """By the text, but for the rank's own number and addresses."""
    raising = f"{what}.start(); mpixla.recv(jnp.ones(3), rank)" if "Thread" in what else f"raise {what}"
    work = "def work():\n    raise KeyError('in a thread')"
    done = job(3, f"{PREAMBLE}\n{work}\nmpixla.barrier()\n{raising}\n", check=False, by_run=True)
    assert done.returncode != 0
    heads = re.findall(r"^mpixla: (.*?)(?: ended with an|:) uncaught", done.stderr, re.MULTILINE)
    assert sorted(heads) == sorted(said)
    for error in said.values():
        assert len(re.findall(f"^{error}", done.stderr, re.MULTILINE)) == 1
    assert done.stderr.count("Traceback") == len(said)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("shared_message.file = -1", ", so the whole job is aborted."),  # there is no room for the file, or no lock
        ("time.sleep(1.5 * rank)", " (the same as above)."),
    ],
)
def test_late_error_is_printed_also_without_the_shared_file(job, change, says):
    done = job(
        2,
        f"""{PREAMBLE}
from mpixla.mpi import abort
from mpixla.base import shared_message
end = abort.end_all_ranks
abort.end_all_ranks = lambda status, seconds: end(status, seconds + 4)
mpixla.barrier()
{change}
raise KeyError("lost")
""",
        check=False,
        by_run=True,
    )
    assert UNCAUGHT.format("rank 0") in done.stderr
    assert UNCAUGHT.format("rank 1").partition(",")[0] + says in done.stderr
    assert done.stderr.count("KeyError: 'lost'") == (2 if "file" in change else 1)


def test_hook_of_a_program(job):
    """What it prints is there, also if it ends the job itself, and what it fails with; and the job ends."""
    hook = "import sys\nsys.excepthook = lambda *e: sys.stderr.write('mine\\n') and HOOK"
    code = f"{hook}\n{PREAMBLE}\nraise KeyError('no')\n"
    done = job(2, code.replace("HOOK", "None"), check=False, by_run=True)
    assert done.stderr.count("mine") == 2
    assert done.stderr.count("ended with an uncaught") == 1
    assert UNCAUGHT.format("ranks 0 and 1") in done.stderr
    done = job(2, code.replace("sys.stderr.write('mine\\n') and HOOK", "None"), check=False, by_run=True)
    assert done.stderr.count("KeyError: 'no'") == 1
    for _ in range(5):  # MPICH's mpiexec may lose the lines that ranks write right before they abort
        done = job(2, code.replace("HOOK", "MPI.COMM_WORLD.Abort(3)"), check=False)
        if done.stderr:
            break
    assert "mine" in done.stderr
    waits = "rank or MPI.COMM_WORLD.recv()"
    done = job(2, code.replace("HOOK", "1 / 0").replace("raise", f"{waits}\nraise"), check=False)
    assert "mine" in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert "KeyError: 'no'" in done.stderr


def test_hook_set_after_the_import(job):
    code = f"{PREAMBLE}\nsys.excepthook = lambda *e: print('mine', file=sys.stderr)\nrank or MPI.COMM_WORLD.recv()\n"
    done = job(2, f"{code}raise KeyError('no')", check=False)
    assert done.returncode != 0
    assert "mine" in done.stderr
    assert UNCAUGHT.format("rank 1") in done.stderr
    assert "\nKeyError: 'no'\n" in done.stderr


def test_end_without_standard_output(job):
    code = f"{PREAMBLE}\ndel sys.stdout\nrank or MPI.COMM_WORLD.recv()\nraise KeyError('no')"
    done = job(2, code, check=False)
    assert done.returncode != 0
    assert UNCAUGHT.format("rank 1") in done.stderr
    assert "AttributeError" not in done.stderr


def test_exception_of_an_interactive_console_is_no_failure(job):
    work = "import code; code.InteractiveConsole().runsource('1 / 0')"
    assert "ZeroDivisionError" in job(2, f"{PREAMBLE}\n{work}\nmpixla.barrier()").stderr


@pytest.mark.any_mpi
@pytest.mark.parametrize("parent_fails", [True, False])
def test_process_alone_in_its_world_with_others_that_wait(job, parent_fails):
    code = f"""{PREAMBLE}
parent = MPI.Comm.Get_parent()
is_parent = parent == MPI.COMM_NULL
both = (MPI.COMM_SELF.Spawn(sys.executable, [__file__], 1) if is_parent else parent).Merge()
mpixla.allreduce(jnp.ones(3), op=MPI.SUM, comm=both)
if is_parent == {parent_fails}:
    raise KeyError("lost")
mpixla.allreduce(jnp.ones(3), op=MPI.SUM, comm=both)
"""
    done = job(1, code, check=False)
    assert done.returncode != 0
    assert UNCAUGHT.format("rank 0") in done.stderr


@pytest.mark.parametrize("output", ["io.StringIO()", "None"])
def test_while_standard_error_is_redirected(job, output):
    code = f"""{PREAMBLE}
import contextlib, io
thread = threading.Thread(target=lambda: {{}}["in a thread"])
with contextlib.redirect_stderr({output}):
    rank == 0 or thread.start()
    mpixla.recv(jnp.ones(3), 1 - rank)
"""
    done = job(2, code, check=False, by_run=True)
    assert done.stderr.count("rank 1: uncaught") == 1
    assert "KeyError: 'in a thread'" in done.stderr


@pytest.mark.parametrize("output", ["None", "open('/dev/full', 'w')"])
def test_output_that_cannot_be_written(job, output):
    """The job ends, whatever becomes of what a rank prints."""
    fails = f"rank or MPI.COMM_WORLD.recv()\nsys.stdout = {output}\nprint('lost')\nraise KeyError('no')"
    done = job(2, f"{PREAMBLE}\n{fails}", check=False)
    assert UNCAUGHT.format("rank 1") in done.stderr
    assert "KeyError: 'no'" in done.stderr


def test_failed_call_that_nobody_catches_ends_the_job(job):
    done = job(
        2,
        f"""{PREAMBLE}
if rank == 0:
    mpixla.send(jnp.ones(10), 1)
    mpixla.recv(jnp.ones(1), 1)
else:
    print(mpixla.recv(jnp.ones(2), 0))
""",
        check=False,
    )
    assert done.returncode != 0
    assert "r1 | MPI_Recv" in done.stderr


def test_killed_rank_ends_the_job(job):
    done = job(
        2,
        f"""{PREAMBLE}
mpixla.barrier()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
mpixla.allreduce(jnp.ones(3), op=MPI.SUM)
""",
        check=False,
    )
    assert done.returncode != 0


@pytest.mark.parametrize("status", [0, 3])
def test_os_exit_ends_the_job_under_run(job, status):
    """No exit handler hears of it, and the others would wait; MPICH ends them with status 0."""
    done = job(
        2,
        f"""{PREAMBLE}
mpixla.barrier()
if rank == 1:
    os._exit(status={status})
mpixla.recv(jnp.ones(3), 1)
""",
        check=False,
        by_run=True,
    )
    assert done.returncode == (status or 1)
    where = rf"^os\._exit\({status}\) at .*script\.py:8"
    assert re.search(f"{where} would end it while MPI runs", done.stderr, re.MULTILINE)
    assert "mpixla: rank 1 called os._exit, so the whole job is aborted" in done.stderr


def test_os_exit_after_mpi(job):
    done = job(2, f"{PREAMBLE}\nmpixla.barrier()\nMPI.Finalize()\nos._exit(0)\n", by_run=True)
    assert done.stderr == ""


@pytest.mark.parametrize("ends", ["pass", "atexit.register(MPI.Finalize)"])
def test_end_that_is_not_to_finalize(job, ends):
    """MPICH would end the others, with status 0. What finalizes later than mpixla's own end does so."""
    done = job(
        2,
        f"""
        import atexit, mpi4py
        mpi4py.rc.finalize = False
        from mpi4py import MPI
        {ends}
        import jax.numpy as jnp, mpixla
        mpixla.barrier()
        MPI.COMM_WORLD.rank or mpixla.recv(jnp.ones(3), 1)
        """,
        check=False,
    )
    assert done.returncode == 1
    assert "rank 1" in done.stderr, done.stderr


def test_abort_can_be_turned_off(job):
    """The failing rank ends alone; the others go on and end well."""
    done = job(
        2,
        f"""{PREAMBLE}
import atexit
atexit.register(print, "ended", rank, flush=True)
if rank == 1:
    raise KeyError("lost on rank 1")
""",
        check=False,
        MPIXLA_ABORT="0",
    )
    assert "ended 0" in done.stdout
    assert "ended 1" in done.stdout
    assert "the whole job is aborted" not in done.stderr


@pytest.mark.parametrize("how", ["jit", "eager", "thread"])
def test_programs_running_at_exit_are_finished(job, how):
    """The process ends right after dispatching; MPI must not be finalized under a running program."""
    finish = {
        "jit": "run(x)",
        "eager": "mpixla.allreduce(jax.jit(busy)(x), op=MPI.SUM)",
        "thread": "threading.Thread(target=lambda: run(x)).start()",
    }[how]
    done = job(
        2,
        f"""{PREAMBLE}
def busy(x):
    return jax.lax.fori_loop(0, 10, lambda i, x: x @ x, x)
run = jax.jit(lambda x: mpixla.allreduce(busy(x), op=MPI.SUM))
x = jnp.ones((500, 500)) / 500
{finish}
print("dispatched", rank, flush=True)
""",
        MPIXLA_DEBUG="1",
    )
    for rank in range(2):
        assert f"dispatched {rank}" in done.stdout
        assert re.search(rf"r{rank} \| \w{{4}} \| MPI_Allreduce done with code 0", done.stderr)


def test_interactive_sessions_survive(monkeypatch):
    class Several:
        def Get_size(self):  # noqa: N802
            return 2

    monkeypatch.setattr(MPI, "COMM_WORLD", Several())
    assert exit.can_abort()
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert not exit.can_abort()


# What is under way at the end: how it starts, on which ranks, and how it is named.
UNDER_WAY = [
    ("mpixla.irecv(x, other, tag=4)", (0, 1), "MPI_Irecv <- {other} with tag 4 and 4 items of float32"),
    ("mpixla.isend(x, other, tag=5)", (0, 1), "MPI_Isend -> {other} with tag 5 and 4 items of float32"),
    (
        "jax.jit(lambda x: mpixla.isend(x, other))(jnp.ones(10**6))",
        (0, 1),
        "MPI_Isend -> {other} with tag 0 and 1000000 items",
    ),
    ("mpixla.iallreduce(x, MPI.SUM)", (0, 1), "MPI_Iallreduce with 4 items of float32, op MPI_SUM"),
    ("rank == 0 and mpixla.irecv(x, other)", (0,), "MPI_Irecv <- {other} with tag any"),
]
TO_ITSELF = (
    r"mpixla: r{0} \| MPI_Send -> {0} with tag 5 and 1000000 items of float32, on rank {0} of 2 of communicator "
    r"'mpixla default', at script\.py:\d+ went to this rank itself, but was never received"
)


def test_messages_never_received_are_named_at_the_end(job):
    """The job ends well, whatever is still under way."""
    done = job(
        2,
        f"""{PREAMBLE}
x, other = jnp.ones(4), 1 - rank
mpixla.wait(mpixla.iallreduce(x, MPI.MAX))
requests = [{", ".join(start for start, _, _ in UNDER_WAY)}]
mpixla.send(jnp.ones(10**6), rank, tag=5)
print("ended", rank, flush=True)
""",
    )
    assert sorted(done.stdout.splitlines()) == ["ended 0", "ended 1"]
    named = re.findall(r"^mpixla: r(\d) \| (.*) was started, but never waited for$", done.stderr, re.MULTILINE)
    for rank in range(2):
        on_this = f"on rank {rank} of 2 of communicator 'mpixla default'"
        mine = [what for of, what in named if of == str(rank)]
        wanted = [line.format(other=1 - rank) for _, ranks, line in UNDER_WAY if rank in ranks]
        assert len(mine) == len(wanted)
        for line in wanted:
            assert any(what.startswith(line) and on_this in what for what in mine), (line, mine)
        assert re.search(TO_ITSELF.format(rank), done.stderr), done.stderr


@pytest.mark.parametrize("start", ["irecv(jnp.ones(4), 1 - rank)", "isend(jnp.ones(4), 1 - rank)"])
def test_finalize_with_a_request_while_messages_progress(job, start):
    """The thread that calls MPI while requests are under way leaves MPI before that is gone."""
    code = f"{PREAMBLE}\nrequest = mpixla.{start}\nMPI.Finalize()\nprint('ended', rank, flush=True)\n"
    done = job(2, code, check=False, MPIXLA_PROGRESS="1")
    for _ in range(3):  # MPICH 5.0 aborts if a thread is in MPI at the moment in which MPI_Finalize begins
        if "pthread_mutex_destroy" in done.stderr:
            done = job(2, code, check=False, MPIXLA_PROGRESS="1")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["ended 0", "ended 1"]


# A program that fails on rank 1 in the background, and what becomes of the failure.
RECEIVE = f"""{PREAMBLE}
def fail(how):
    if rank == 0:
        mpixla.isend(jnp.ones(10), 1)
        return None
    def receive(x):
        x = jax.lax.fori_loop(0, 5, lambda i, x: x @ x, x)
        return mpixla.recv(x[0, :3], 0)
    return {{"sealed": mpixla.jit, "jit": jax.jit}}[how](receive)(jnp.zeros((500, 500)))
"""
FAILED = r"a call failed, and nobody has looked at its result: r{0} \| MPI_Recv returned error code \d+: "


GO_ON = "print(mpixla.allreduce(jnp.ones(2), op=MPI.SUM))"


@pytest.mark.parametrize(
    ("how", "then", "abort"), [("jit", "", "0"), ("jit", GO_ON, "1"), ("sealed", "", "1"), ("sealed", GO_ON, "0")]
)
def test_unseen_failure_is_reported_at_the_end(job, how, then, abort):
    code = f"{RECEIVE}\nresult = fail({how!r})\n{then}\nprint('ended', rank, flush=True)\n"
    done = job(2, code, check=False, MPIXLA_ABORT=abort)
    assert done.returncode != 0
    assert re.search("mpixla: rank 1: " + FAILED.format(1), done.stderr)
    assert ("the whole job is aborted" in done.stderr) == (abort == "1")
    assert "Traceback" not in done.stderr
    if abort == "0":
        assert "ended 0" in done.stdout
        assert "ended 1" in done.stdout
    if then and abort == "0":
        assert done.stdout.count("[2. 2.]") == 2


def test_unseen_failure_on_one_rank_ends_the_job(job):
    done = job(
        1,
        f"""{PREAMBLE}
comm = MPI.COMM_WORLD.Dup()
@mpixla.jit
def program(x):
    return mpixla.allreduce(jax.lax.fori_loop(0, 5, lambda i, x: x @ x, x), op=MPI.SUM, comm=comm)
x = jnp.zeros((500, 500))
program(x).block_until_ready()
comm.Free()
program(x)
import atexit
atexit.register(print, "a handler of its own")
sys.exit(0)
""",
        check=False,
    )
    assert done.returncode != 0
    assert "a handler of its own" in done.stdout
    assert "nobody has looked at its result: communicator" in done.stderr
    assert "was freed" in done.stderr


LOOKS = (
    ("jit", "result.block_until_ready()"),
    ("sealed", "print(result)"),
    ("jit", "result + 1"),
    ("sealed", "jax.device_get(result)"),
)


def test_seen_failure_is_not_reported_again(job):
    """It was an exception, and that was all: no line, no exit status."""
    looks = ", ".join(f'("{how}", lambda result: {look})' for how, look in LOOKS)
    done = job(
        2,
        f"""{RECEIVE}
for how, look in ({looks}):
    result = fail(how)
    if rank == 1:
        for _ in range(2):
            try:
                jax.block_until_ready(look(result))
            except Exception as e:
                print("caught", type(e).__name__, flush=True)
    print(mpixla.allreduce(jnp.ones(2), op=MPI.SUM))
""",
    )
    assert done.stdout.count("caught") == 2 * len(LOOKS)
    assert done.stdout.count("[2. 2.]") == 2 * len(LOOKS)
    assert "a call failed" not in done.stderr
    assert "Traceback" not in done.stderr


THREAD = f"""{PREAMBLE}
def work():
    raise KeyError("lost in a thread")
if rank == 1:
    threading.Thread(target=work, name="worker", daemon=DAEMON).start()
"""


def test_exception_in_a_thread_ends_the_job_under_run(job):
    code = f"{THREAD}mpixla.recv(jnp.ones(1), 1 - rank)".replace("DAEMON", "False")
    done = job(2, code, check=False, by_run=True)
    assert done.returncode != 0
    assert "KeyError: 'lost in a thread'" in done.stderr
    assert "mpixla: rank 1: uncaught KeyError in thread worker, so the whole job" in done.stderr


# Which threads: under mpirun all, under `run` those for which Python does not wait.
@pytest.mark.parametrize(("by_run", "daemon"), [(False, False), (True, True)])
def test_exception_in_a_thread_is_printed(job, by_run, daemon):
    code = f"{THREAD}\nmpixla.barrier()\nprint('ended', rank)\n".replace("DAEMON", str(daemon))
    done = job(2, code, by_run=by_run)
    assert sorted(done.stdout.splitlines()) == ["ended 0", "ended 1"]
    assert done.stderr.count("KeyError: 'lost in a thread'") == 1
    assert "mpixla: " not in done.stderr


@pytest.mark.parametrize("by_run", [False, True])
def test_threads_that_fail_since_the_program_has_ended(job, by_run):
    """Python makes no new threads then, and waits for those that there are."""
    done = job(
        2,
        f"""{PREAMBLE}
import atexit
from concurrent.futures import ThreadPoolExecutor
def work():
    threading.main_thread().join()
    ThreadPoolExecutor().submit(print)
mpixla.barrier()
threading.Thread(target=work).start()
atexit.register(print, "saved", rank)
""",
        by_run=by_run,
    )
    assert sorted(done.stdout.splitlines()) == ["saved 0", "saved 1"]
    assert done.stderr.count("RuntimeError: cannot schedule new futures after") == 2


# A receive that is interrupted. The signals come so many seconds after the compiled program has come to the call,
# however long compiling takes.
INTERRUPT = f"""{PREAMBLE}
signals_after = [1]

def interrupt(x):
    for seconds in signals_after:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
    return x

@jax.jit
def interrupted_recv(x):
    return mpixla.recv(jax.pure_callback(interrupt, x, x), (rank + 1) % size)
"""


@pytest.mark.long
def test_interrupted_call_that_never_ends(job):
    """Ctrl-C on one rank only, which Python would not hear of."""
    done = job(
        2,
        f"""{INTERRUPT}
if rank == 0:
    interrupted_recv(jnp.ones(3)).block_until_ready()
else:
    time.sleep(100)
""",
        check=False,
        by_run=True,
    )
    assert done.returncode != 0
    call = "mpixla: rank 0 was interrupted (SIGINT) in MPI_Recv <- 1 with tag any and 3 items of float32"
    assert re.search(rf"^{re.escape(call)}.*script\.py:.*, which has not ended\. A call", done.stderr, re.MULTILINE)
    assert ": the whole job ends if the call lasts for 5 s.\n" in done.stderr


@pytest.mark.long
def test_interrupt_of_all_ranks_is_printed_once_by_each(job):
    """Ctrl-C, as launchers pass it on."""
    done = job(
        3,
        f"""{INTERRUPT}
interrupted_recv.lower(jnp.ones(3)).compile()
mpixla.barrier()
interrupted_recv(jnp.ones(3)).block_until_ready()
""",
        check=False,
        by_run=True,
    )
    assert done.returncode != 0
    said = re.findall(r"^mpixla: rank (\d) was interrupted .*, which has not ended\.", done.stderr, re.MULTILINE)
    assert sorted(said) == ["0", "1", "2"]


@pytest.mark.long
def test_interrupted_call_that_ends(job):
    """A program that catches the interrupt has seconds for the call that it is in, whose name is said."""
    done = job(
        2,
        f"""{INTERRUPT}
def interrupt(x):
    def later():
        os.kill(os.getpid(), signal.SIGINT)
        open("interrupted", "w").close()
    threading.Timer(1, later).start()
    return x

try:
    if rank == 0:
        interrupted_recv(jnp.ones(3)).block_until_ready()
        time.sleep(100)
    else:
        while not os.path.exists("interrupted"):
            time.sleep(0.01)
        time.sleep(2)    # the call lasts
        mpixla.send(jnp.ones(3), 0)
except KeyboardInterrupt:
    print("interrupted", rank, flush=True)
time.sleep(5)
mpixla.barrier()
""",
        by_run=True,
    )
    assert done.stdout.split() == ["interrupted", "0"]
    assert re.findall("mpixla: rank 0 was interrupted .* in (MPI_Recv <- 1) .*, which has not ended", done.stderr) == [
        "MPI_Recv <- 1"
    ]


@pytest.mark.parametrize("by_run", [False, True])
def test_interrupt_with_a_handler_of_the_program(job, by_run):
    """It is the program's affair."""
    done = job(
        2,
        f"""{INTERRUPT}
def end(*_):
    print("heard", flush=True)
signal.signal(signal.SIGINT, end)
if rank == 0:
    interrupted_recv(jnp.ones(3)).block_until_ready()
else:
    time.sleep(8)
    mpixla.send(jnp.ones(3), 0)
mpixla.barrier()
""",
        by_run=by_run,
    )
    assert done.stdout == "heard\n"
    assert "interrupted" not in done.stderr


def test_interrupted_computation(job):
    """No call is under way: this is Python's affair."""
    done = job(
        1,
        f"""{PREAMBLE}
threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    time.sleep(100)
except KeyboardInterrupt:
    print("interrupted")
""",
    )
    assert done.stdout.split() == ["interrupted"]


# What a forked process does, whether JAX has started before, and its exit status. That of sys.exit may be lost.
FORKED = [
    (False, "sys.exit()", 0),
    (False, "os._exit(3)", 3),
    (False, "raise KeyError('in the child')", 1),
    (False, "sys.excepthook = print; raise KeyError('in the child')", 1),
    (False, "atexit.register(print, 'its own handler', flush=True); sys.exit()", 0),
    (True, "os._exit(3)", 3),
    (True, "pass", 0),
    (True, "raise KeyError('in the child')", 1),
    (True, "communicate()", 0),
    (True, "communicate(1.0)", 0),
    (True, "communicate({'a': ones, 'b': ones})", 0),
    (True, "communicate(ones, mpixla.norm)", 0),
    (True, "communicate(request, mpixla.wait)", 0),
]


def test_forked_process_ends_alone(job):
    """Whatever it does, the job goes on, and its parent gets its exit status. Nor does a thread that exits end more."""
    done = job(
        2,
        f"""{PREAMBLE}
import atexit, warnings
warnings.simplefilter("ignore")
def communicate(x=None, call=lambda x: mpixla.allreduce(ones if x is None else x, op=MPI.SUM)):
    try:
        call(x)
    except ValueError as e:
        print("refused:", e, flush=True)
thread = threading.Thread(target=sys.exit, args=(3,))
thread.start()
thread.join()
for started, does, wanted in {FORKED!r}:
    if started:    # what a child uses must be compiled: JAX has no threads for that in it
        ones = jnp.ones(1)
        mpixla.allreduce(ones, op=MPI.SUM)
        request = mpixla.iallreduce(ones, op=MPI.SUM)
    child = os.fork()
    if child == 0:
        break
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == wanted, (does, status)
if child == 0:
    exec(does)
else:
    mpixla.barrier()
    print("ended", rank, mpixla.allreduce(jnp.ones(1), op=MPI.SUM), flush=True)
""",
    )
    for rank in range(2):
        assert done.stdout.count(f"ended {rank} [2.]") == 1
    assert done.stdout.count("ended") == done.stdout.count("its own handler") == 2
    refused = "refused: this process was forked from one that runs MPI, which cannot be used in both"
    assert done.stdout.count(refused) == 10
    assert done.stdout.count("Start processes with multiprocessing's start method 'spawn'") == 10
    assert "aborted" not in done.stderr
    assert done.stderr.count("\nKeyError: 'in the child'") == 4


@pytest.mark.parametrize("ends", [True, False], ids=["", "MPIXLA_ABORT=0"])
@pytest.mark.parametrize("module", [("mpixla.compat", "mpi4jax"), ("mpixla.distributed",)], ids=" ".join)
def test_exception_in_a_program_that_mpixla_runs(job, module, ends):
    """It has imported mpixla, so that is no reason; the traceback is the program's, once."""
    done = job(
        2,
        """
        from mpi4py import MPI
        def learn():
            raise KeyError("no weights")
        if MPI.COMM_WORLD.rank == 1:
            learn()
        """,
        python=("-m", *module),
        check=False,
        MPIXLA_ABORT=str(int(ends)),
    )
    assert done.returncode == 1
    said = "mpixla: rank 1 ended with an uncaught KeyError, so the whole job is aborted."
    assert done.stderr.count(said) == ends, done.stderr
    assert "before importing" not in done.stderr
    assert done.stderr.count("Traceback (most recent call last)") == done.stderr.count("KeyError: 'no weights'") == 1
    assert not re.search("runpy|program.py|__main__.py", done.stderr)


def test_calls_after_finalize(job):
    done = job(
        1,
        f"""{PREAMBLE}
x = jnp.ones(3)
cart = MPI.COMM_WORLD.Create_cart([size], [True])
jitted, sealed = (jit(lambda x: mpixla.allreduce(x, op=MPI.SUM)) for jit in (jax.jit, mpixla.jit))
calls = {{
    "eager again": lambda: mpixla.allreduce(x, op=MPI.SUM),
    "eager": lambda: mpixla.allreduce(x, op=MPI.MAX),
    "barrier": lambda: mpixla.barrier(),
    "send": lambda: mpixla.send(x, 0),
    "isend": lambda: mpixla.isend(x, 0),
    "wait": lambda: mpixla.wait(request),
    "status": lambda: mpixla.recv(x, 0, status=MPI.Status()),
    "halo": lambda: mpixla.halo_exchange(jnp.ones(9), cart),
    "neighbor": lambda: mpixla.neighbor_allgather(x, comm=cart),
    "jitted again": lambda: jitted(x),
    "sealed again": lambda: sealed(x),
    "jitted": lambda: jax.jit(lambda x: mpixla.bcast(x, 0))(x),
}}
for name, call in calls.items():
    if "again" in name:
        call().block_until_ready()
request = mpixla.isend(x, MPI.PROC_NULL)
MPI.Finalize()
for name, call in calls.items():
    try:
        jax.block_until_ready(call())
    except Exception as e:
        print(name, "refused:", e)
""",
    )
    assert len(re.findall("refused: .*MPI is finalized", done.stdout)) == 12, done.stdout


def test_jax_debug_nans(job):
    """JAX would make a rank's communication again, and the other rank's next call would get it."""
    done = job(
        2,
        f"""{PREAMBLE}
jax.config.update("jax_debug_nans", True)
def f(x):
    return mpixla.allreduce(x, op=MPI.SUM)
ones = jnp.ones(2)
for g in (f, f, jax.jit(f), mpixla.jit(f), mpixla.jit(f)):
    assert g(ones).tolist() == [2, 2]
def log(x):
    return jnp.log(mpixla.sendrecv(x, x, 1 - rank, 1 - rank))
x = jnp.array([-1.0 if rank == 0 else 1.0])
for jit in (jax.jit, mpixla.jit):
    try:
        jit(log)(x)
    except FloatingPointError as e:
        print(rank, "FloatingPointError:", e, flush=True)
    print(f(ones))
jax.config.update("jax_debug_nans", False)
nan = ones * jnp.nan
jax.config.update("jax_debug_nans", True)
try:
    f(nan)
except FloatingPointError as e:
    print(e)
""",
    )
    assert done.stdout.count("[2. 2.]") == 4
    lines = re.findall("1 FloatingPointError: (.*)", done.stdout)
    assert len(lines) == done.stdout.count("FloatingPointError:") == 2
    assert all("sendrecv is not made again: the other ranks would take it" in line for line in lines)
    assert done.stdout.count("the result of allreduce has a NaN or an infinity (jax_debug_nans, jax_debug_infs).") == 2


@pytest.mark.parametrize("comm", ["None", "MPI.COMM_WORLD"])
def test_messages_that_nobody_receives_are_named(job, comm):
    """MPICH ends the job, or hangs, if one is left on MPI_COMM_WORLD."""
    done = job(
        3,
        f"""{PREAMBLE}
if rank == 2:
    mpixla.send(jnp.ones(3, jnp.float32), dest=0, tag=7, comm={comm})
    for tag in range(20, 30):
        mpixla.send(jnp.ones(2, jnp.float32), dest=1, tag=tag, comm={comm})
mpixla.allreduce(jnp.ones(3), op=MPI.SUM, comm={comm}).block_until_ready()
mpixla.barrier(comm={comm})
""",
    )
    name = "mpixla default" if comm == "None" else "MPI_COMM_WORLD"
    told = [line for line in done.stderr.splitlines() if line.startswith("mpixla: ")]
    assert (
        f"mpixla: rank 0 ends and has not received 1 message of 12 bytes that rank 2 sent with tag 7 on communicator "
        f"'{name}': each send needs a recv." in told
    )
    assert sum("rank 1 ends and has not received 1 message of 8 bytes" in line for line in told) == 8
    assert "mpixla: and 2 more like these." in told
    assert len(told) == 10


def test_message_that_comes_when_its_receiver_has_ended(job):
    """It is told as well: whoever ends waits for the others, which may still send."""
    code = f"""{PREAMBLE}
mpixla.barrier()
if rank == 1:
    time.sleep(1)
    MPI.COMM_WORLD.Send(bytes(5), dest=0, tag=3)
"""
    done = job(2, code)
    assert "1 message of 5 bytes that rank 1 sent with tag 3 on communicator 'MPI_COMM_WORLD'" in done.stderr


def test_message_that_an_exit_handler_receives(job):
    """One that was registered before mpixla was imported, and so runs after mpixla's own."""
    code = """
import atexit
from mpi4py import MPI
world = MPI.COMM_WORLD
def receive():
    got = bytearray(5)
    world.Recv(got, source=1 - world.rank)
    print("received", bytes(got), flush=True)
atexit.register(receive)
import jax.numpy as jnp, mpixla
world.Send(b"hello", dest=1 - world.rank)
mpixla.barrier()
world.Iprobe()
mpixla.allreduce(jnp.ones(1), op=MPI.SUM)
"""
    done = job(2, code, timeout=60)
    assert done.stdout.count("received b'hello'") == 2
    assert done.stderr == ""


def test_unwaited_receives_are_given_up_together(job):
    """They are given up together: one after the other, a second for each, would take longer than the job may."""
    done = job(
        2, f"{PREAMBLE}\nx = jnp.ones(4)\nrequests = [mpixla.irecv(x, 1 - rank) for _ in range(90)]\n", timeout=60
    )
    assert done.stderr.count("was started, but never waited for (90 times)") == 2
