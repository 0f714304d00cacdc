"""THE TABLE of faults: what is done to a job, under which setting, and what must come of it.

A program is a few lines behind PREAMBLE, run on every rank. `mark()` stands right before the fault: from there on
docs/faults.md counts the seconds. Patterns are for what mpirun and the ranks print, without regard to case.
"""

import textwrap
from dataclasses import dataclass

PREAMBLE = """
import os, resource, signal, sys, threading, time
import jax, jax.numpy as jnp
from mpi4py import MPI
import mpixla

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
left, right, other, victim = (rank - 1) % size, (rank + 1) % size, (rank + 1) % size, size - 1
x = jnp.arange(8.0)

def note(what):
    with open(os.environ["FAULT_" + what] + str(rank), "w") as file:
        file.write(repr(time.time()))

def mark():
    note("MARK")

def caught(call):
    try:
        jax.block_until_ready(call())
    except Exception as e:
        text = f"{type(e).__name__}: {e}"
    else:
        text = "nothing"
    note("HEARD")
    sys.stderr.write(f"rank {rank} caught {text}\\n")
"""

# How long a job may take, in seconds, from its start: one that is still there then is killed, and its test fails.
WITHIN = 120

PLAIN: dict[str, str] = {}
CHECK = {"MPIXLA_CHECK": "1"}
TIMEOUT = {"MPIXLA_TIMEOUT": "2"}
TRACE = {"MPIXLA_TRACE": "timelines"}
THROUGH_MPI = {"MPIXLA_LOCAL": "0"}

BAD = "any but 0"  # an exit status


@dataclass(frozen=True)
class Fault:
    """A row."""

    group: str
    name: str
    code: str
    saw: str  # a pattern; "": nobody says anything
    setting: tuple[tuple[str, str], ...] = ()  # of the environment
    ranks: int = 2
    also: tuple[str, ...] = ()  # further patterns that must be there
    never: tuple[str, ...] = ("Segmentation fault", "Assertion", "corrupt")  # and those that must not
    status: int | str = BAD
    prints: str = ""  # a pattern for standard output
    within: int = WITHIN
    quote: str = ""  # a pattern: docs/faults.md quotes the first line that has it, or one that has `saw`
    before: str = ""  # what stands before PREAMBLE
    by_run: bool = False  # python -m mpixla run launches it, which ends a job for an exception in a thread

    @property
    def id(self) -> str:
        """Its name in test reports and file names."""
        setting = "".join(name.removeprefix("MPIXLA") for name, _ in self.setting)
        text = f"{self.group} {self.name} {self.ranks}{setting}"
        return "".join(c if c.isalnum() else "-" for c in text).lower()


def _row(group: str, name: str, setting: dict[str, str], code: str, saw: str, **more: object) -> Fault:
    return Fault(group, name, textwrap.dedent(code), saw, tuple(setting.items()), **more)  # type: ignore[arg-type]


# A rank is lost before, in and after each kind of call

CALLS = {
    "allreduce": "mpixla.allreduce(x, op=MPI.SUM)",
    "send, recv": "(mpixla.send(x, right), mpixla.recv(x, left))[1] if rank == 0 else "
    "mpixla.send(mpixla.recv(x, left), right)",
    "sendrecv": "mpixla.sendrecv(x, x, left, right)",
    "isendrecv, wait": "mpixla.wait(mpixla.isendrecv(x, x, left, right))",
    "iallreduce, wait": "mpixla.wait(mpixla.iallreduce(x, MPI.SUM))",
    "halo_exchange": "mpixla.halo_exchange(x, line)",
    "neighbor_allgather": "mpixla.neighbor_allgather(x, comm=line)",
}

# The first call of all makes connections, and communicators of mpixla's own: `before` is before that.
LOSES = """
line = world.Create_cart([size], [True])
call = jax.jit(lambda x: {call})
def run():
    jax.block_until_ready(call(x))
def lost():
    mark()
    {lost}
"""
WHENS = {
    "before": """
if rank == victim:
    lost()
run()
run()
""",
    "in": """
run()
world.Barrier()
if rank == victim:
    threading.Timer(0.3, lost).start()
else:
    time.sleep(1)
run()
run()
""",
    "after": """
run()
if rank == victim:
    lost()
run()
run()
""",
}
LOST = {
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "is stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "raises": "raise RuntimeError('lost on purpose')",
    "calls sys.exit": "sys.exit(0)",
}
ABORTED = ", so the whole job is aborted"
WAITED = r"mpixla: rank \d+ has waited for .* longer than MPIXLA_TIMEOUT=2 allows"
IN_VAIN = r"mpixla: rank \d+ has waited for .* for a rank that is at the end of its script, so the whole job ends"
KILLED = r"signal:? 9\b|exit code: 9\b"
LINE = r"\bscript\.py:\d+"
SAID = {
    "is killed": (KILLED,),
    "is stopped": (WAITED, LINE, "stopped .SIGSTOP"),
    "raises": (r"mpixla: rank {victim}\b.* uncaught RuntimeError.*" + ABORTED, "RuntimeError: lost on purpose"),
    "calls sys.exit": (IN_VAIN, LINE, "Rank {victim} has not come: it is at the end of its script"),
}


def _loss(how: str, when: str, call: str, setting: dict[str, str], ranks: int = 2, **more: object) -> Fault:
    saw, *also = SAID[how]
    code = LOSES.format(call=CALLS[call], lost=LOST[how]) + WHENS[when]
    quote = also[-1] if saw in (WAITED, IN_VAIN) else ""
    return _row(
        f"a rank {how} {when} the call", call, setting, code, saw, also=tuple(also), ranks=ranks, quote=quote, **more
    )


def _losses() -> list[Fault]:
    rows = []
    for call in CALLS:
        rows += [_loss("is killed", when, call, PLAIN) for when in WHENS]
        rows += [_loss("raises", when, call, PLAIN) for when in ("before", "after")]
        rows += [_loss("is stopped", when, call, TIMEOUT) for when in ("before", "in")]
        rows.append(_loss("calls sys.exit", "after", call, PLAIN))
    rows += [_loss("raises", "in", "allreduce", setting, by_run=True) for setting in (PLAIN, THROUGH_MPI)]
    rows.append(_loss("is killed", "in", "allreduce", THROUGH_MPI))
    rows.append(_loss("is stopped", "in", "allreduce", {**THROUGH_MPI, **TIMEOUT}))
    for ranks in (3, 4):
        for how, setting in (
            ("is killed", PLAIN),
            ("raises", PLAIN),
            ("is stopped", TIMEOUT),
            ("calls sys.exit", PLAIN),
        ):
            rows += [_loss(how, "after", call, setting, ranks) for call in ("allreduce", "halo_exchange")]
    return rows


ENDS = [
    _row(
        "a rank ends early",
        "its script ends",
        PLAIN,
        """
        mpixla.barrier()
        mark()
        if rank != victim:
            mpixla.allreduce(x, op=MPI.SUM).block_until_ready()
        """,
        IN_VAIN,
        also=(LINE, "Rank 1 has not come: it is at the end of its script"),
        quote="has not come",
    ),
    _row(
        "a rank ends early",
        "a request of its own is under way",
        PLAIN,
        """
        mark()
        if rank == victim:
            request = mpixla.irecv(x, left)
        """,
        r"r1 . MPI_Irecv <- 0 with tag any and 8 items of float32.* was started, but never waited for",
        status=0,
    ),
]

# Messages

MESSAGES = [
    _row(
        "messages",
        "recv is too small",
        PLAIN,
        """
        mark()
        caught(lambda: mpixla.send(jnp.ones(10), 1) if rank == 0 else mpixla.recv(jnp.ones(3), 0))
        """,
        r"rank 1 caught \w+: .*r1 . MPI_Recv returned error code \d+: .*truncate",
        also=("3 items of float32, on rank 1 of 2 of communicator 'mpixla default', at " + LINE,),
        status=0,
    ),
    _row(
        "messages",
        "recv is too large: no error of MPI's, the rest stays",
        PLAIN,
        """
        mark()
        if rank == 0:
            mpixla.send(jnp.ones(3), 1)
        else:
            print(mpixla.recv(jnp.zeros(5), 0))
        """,
        "",
        status=0,
        prints=r"\[1\. 1\. 1\. 0\. 0\.\]",
    ),
    *(
        _row(
            "messages",
            f"recv {what}",
            CHECK,
            f"""
            mark()
            caught(lambda: mpixla.send({sent}, 1) if rank == 0 else mpixla.recv({template}, 0))
            """,
            r"rank 1 caught \w+: .*MPIXLA_CHECK: a message from rank 0 to rank 1",
            also=(r"sends \d+ items of float32, at " + LINE, r"receives \d+ items of \w+, at " + LINE),
            quote="They differ in",
            status=0,
        )
        for what, sent, template in (
            ("is too small", "jnp.ones(10)", "jnp.ones(3)"),
            ("is too large", "jnp.ones(3)", "jnp.ones(5)"),
            ("has another data type", "jnp.ones(3)", "jnp.ones(3, jnp.int32)"),
        )
    ),
    _row(
        "messages",
        "nobody receives one",
        PLAIN,
        """
        mark()
        if rank == 1:
            mpixla.send(x, 0, comm=MPI.COMM_WORLD)
        print(mpixla.allreduce(x, op=MPI.SUM, comm=MPI.COMM_WORLD))
        """,
        r"rank 0 ends and has not received 1 message of \d+ bytes that rank 1 sent with tag 0",
        status=0,
    ),
    _row(
        "messages",
        "two ranks receive first",
        TIMEOUT,
        """
        mark()
        mpixla.send(mpixla.recv(x, other), other)
        """,
        WAITED,
        also=(LINE, "wait for each other"),
        quote="wait for each other",
    ),
    _row(
        "messages",
        "nobody sends",
        TIMEOUT,
        """
        mark()
        if rank == 0:
            mpixla.recv(x, 1).block_until_ready()
        else:
            time.sleep(100)
        """,
        WAITED,
        also=(LINE, "MPI_Recv <- 1"),
        quote="MPI_Recv <- 1",
    ),
]

# Calls of all ranks that do not fit together: from rank 1 another one, and a word that the exception must have

MISMATCHES = {
    "another data type": ("mpixla.allreduce(x.astype(jnp.int32) if rank else x, op=MPI.SUM)", "int32"),
    "another count": ("mpixla.allreduce(jnp.ones(4 + rank), op=MPI.SUM)", "5 items"),
    "another reduction": ("mpixla.allreduce(x, op=MPI.MAX if rank else MPI.SUM)", "MPI_MAX"),
    "another reduction, iallreduce": ("mpixla.wait(mpixla.iallreduce(x, MPI.MAX if rank else MPI.SUM))", "MPI_MAX"),
    "another root, bcast": ("mpixla.bcast(x, int(rank > 0))", "root 1"),
    "another root, reduce": ("mpixla.reduce(x, MPI.SUM, int(rank > 0))", "root 1"),
    "another root, gather": ("mpixla.gather(x, int(rank > 0))", "root 1"),
    "another operation": ("mpixla.allreduce(x, op=MPI.SUM) if rank else mpixla.bcast(x, 0)", "MPI_Bcast"),
    "another order": (
        "(mpixla.barrier(), mpixla.allreduce(x, op=MPI.SUM)) if rank else "
        "(mpixla.allreduce(x, op=MPI.SUM), mpixla.barrier())",
        "MPI_Barrier",
    ),
    "another number of leaves": ("mpixla.allreduce([x] if rank else [x, x], op=MPI.SUM)", "16 items"),
    "other counts, allgatherv": (
        "mpixla.allgatherv(jnp.ones(3), [3, 3]) if rank else mpixla.allgatherv(jnp.ones(3), [3, 4])",
        "MPI_Allgatherv",
    ),
    "another shape, halo_exchange": (
        "mpixla.halo_exchange(jnp.ones((6, 4 + rank)), world.Create_cart([size], [True]))",
        LINE,
    ),
}


def _mismatch(name: str, ranks: int) -> Fault:
    call, word = MISMATCHES[name]
    return _row(
        "calls that do not fit together",
        name,
        PLAIN,
        f"mark()\ncaught(lambda: {call})\n",
        r"rank 0 caught \w+: .*MPIXLA_CHECK: ",
        also=(*(rf"rank {rank} caught \w+: .*MPIXLA_CHECK: " for rank in range(1, ranks)), word, LINE),
        quote="They differ in",
        never=("caught nothing",),
        status=0,
        ranks=ranks,
    )


# Objects that were freed

COMM = """
comm = world.Dup()
comm.Set_name("short-lived")
call = jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM, comm=comm))
"""
FREED = [
    _row(
        "freed objects",
        "a communicator, before it is traced",
        PLAIN,
        COMM
        + """
comm.Free()
mark()
caught(lambda: call(x))
""",
        "rank 0 caught ValueError: comm is MPI.COMM_NULL",
        also=("rank 1 caught ValueError: comm is MPI.COMM_NULL",),
        status=0,
    ),
    _row(
        "freed objects",
        "a communicator, after it was traced",
        PLAIN,
        COMM
        + """
call(x)
comm.Free()
mark()
caught(lambda: call(x))
""",
        r"rank 0 caught (?!nothing).*communicator 'short-lived' was freed after this program was traced",
        also=("rank 1 caught (?!nothing)",),
        status=0,
    ),
    _row(
        "freed objects",
        "a communicator, while a request is under way",
        PLAIN,
        COMM
        + """
request = mpixla.isendrecv(x, x, other, other, comm=comm)
comm.Free()
mark()
caught(lambda: print(mpixla.wait(request).sum()))
""",
        "rank 0 caught nothing",
        also=("rank 1 caught nothing",),
        status=0,
    ),
    _row(
        "freed objects",
        "a communicator, and then a request is started",
        PLAIN,
        """
        comm = world.Dup()
        comm.Set_name("short-lived")
        call = jax.jit(lambda x: mpixla.wait(mpixla.irecv(x, other, comm=comm))).lower(x).compile()
        comm.Free()
        mark()
        caught(lambda: call(x))
        """,
        r"rank 0 caught (?!nothing).*communicator 'short-lived' was freed",
        also=("rank 1 caught (?!nothing)",),
        status=0,
    ),
    _row(
        "freed objects",
        "a reduction, after it was traced",
        PLAIN,
        """
        op = MPI.Op.Create(lambda a, b, datatype: None)
        call = jax.jit(lambda x: mpixla.allreduce(x, op=op)).lower(x).compile()
        op.Free()
        mark()
        caught(lambda: call(x))
        """,
        "rank 0 caught (?!nothing).*reduction was freed",
        also=("rank 1 caught (?!nothing).*reduction was freed",),
        status=0,
    ),
    _row(
        "freed objects",
        "MPI itself is finalized",
        PLAIN,
        """
        call = jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM))
        call(x).block_until_ready()
        MPI.Finalize()
        mark()
        caught(lambda: call(x))
        """,
        "rank 0 caught (?!nothing).*MPI is finalized",
        also=("rank 1 caught (?!nothing).*MPI is finalized",),
        status=0,
    ),
]

# Memory that cannot be had. A limit is the address space that the process has, and so many bytes.

LIMIT = """
def limit(bytes):
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + bytes, resource.RLIM_INFINITY))
    mark()
"""
# At the end mpixla waits for what still runs, for which JAX compiles, and LLVM ends a process without memory for it.
NO_LIMIT = """
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
NO_MEMORY = {
    "for requests": """
x = jnp.ones(1 << 16)
call = jax.jit(lambda x: mpixla.isend(x, MPI.PROC_NULL)).lower(x).compile()
requests = []
def fill():
    for _ in range(1000):
        requests.append(jax.block_until_ready(call(x)))
limit(1 << 24)
caught(fill)
""",
    "for a message to oneself": """
x = jnp.ones(1 << 25)
call = jax.jit(lambda x: mpixla.send(x, rank)).lower(x).compile()
limit(1 << 26)
caught(lambda: call(x))
""",
    "for a result": """
x = jnp.ones(1 << 25)
call = jax.jit(mpixla.allgather).lower(x).compile()
limit(1 << 26)
caught(lambda: call(x))
""",
}
MEMORY = [
    _row(
        "no memory",
        name,
        PLAIN,
        LIMIT + code + NO_LIMIT,
        "rank 0 caught (?!nothing).*memory",
        also=("rank 1 caught (?!nothing).*memory",),
        status=0,
    )
    for name, code in NO_MEMORY.items()
]
# The neighbours wait for the lines of a rank that has no memory for them: so the job ends.
MEMORY.append(
    _row(
        "no memory",
        "for the messages of a halo_exchange",
        PLAIN,
        LIMIT
        + """
x = jnp.ones((1 << 12, 1 << 12))
line = world.Create_cart([size], [True])
exchange = lambda x: mpixla.halo_exchange(x, line, axes=1, width=1024)
call = jax.jit(exchange, donate_argnums=0).lower(x).compile()
limit(1 << 23)
caught(lambda: call(x))
""",
        "there are no [0-9]+ bytes of memory for a call",
        also=("the job ends",),
        quote="bytes of memory",
    )
)

# Signals

SIGNALS = [
    _row(
        "signals",
        "SIGINT on one rank that computes",
        PLAIN,
        """
        mpixla.barrier()
        if rank == victim:
            mark()
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            time.sleep(100)
        else:
            mpixla.recv(x, victim)
        """,
        r"mpixla: rank {victim} .* uncaught KeyboardInterrupt" + ABORTED,
    ),
    _row(
        "signals",
        "SIGINT on mpirun twice, which is Ctrl-C",
        PLAIN,
        """
        mpixla.barrier()
        if rank == 0:
            mark()
            for seconds in (0.5, 2):
                threading.Timer(seconds, os.kill, (int(os.environ["FAULT_MPIRUN"]), signal.SIGINT)).start()
        mpixla.recv(x, other)
        """,
        "",
    ),
    _row(
        "signals",
        "SIGTERM on one rank",
        PLAIN,
        """
        mpixla.barrier()
        if rank == victim:
            mark()
            os.kill(os.getpid(), signal.SIGTERM)
        mpixla.recv(x, other)
        """,
        r"signal:? 15\b|exit code: 15\b",
    ),
    _row(
        "signals",
        "SIGTERM on mpirun, as from a batch system",
        PLAIN,
        """
        mpixla.barrier()
        if rank == 0:
            mark()
            os.kill(int(os.environ["FAULT_MPIRUN"]), signal.SIGTERM)
        mpixla.recv(x, other)
        """,
        "",
    ),
]

# What programs do

PROGRAMS = [
    _row(
        "programs",
        "the function of a reduction raises",
        PLAIN,
        """
        def combine(a, b, datatype):
            raise KeyError("in a reduction")
        op = MPI.Op.Create(combine, commute=True)
        mark()
        mpixla.allreduce(x, op=op).block_until_ready()
        """,
        "KeyError: 'in a reduction'",
    ),
    _row(
        "programs",
        "a thread raises while its rank waits",
        PLAIN,
        """
        def work():
            raise KeyError("in a thread")
        mpixla.barrier()
        if rank == victim:
            mark()
            threading.Thread(target=work).start()
        mpixla.recv(x, other)
        """,
        r"mpixla: rank {victim}: uncaught KeyError in thread .*" + ABORTED,
        by_run=True,
    ),
    _row(
        "programs",
        "a call fails and nobody looks",
        PLAIN,
        """
        mark()
        if rank == 0:
            mpixla.send(jnp.ones(10), 1)
            mpixla.recv(x, 1)
        else:
            busy = lambda x: jax.lax.fori_loop(0, 5, lambda i, x: x @ x, x)
            result = jax.jit(lambda x: mpixla.recv(busy(x)[0, :3], 0))(jnp.zeros((300, 300)))
        """,
        "mpixla: rank 1: a call failed, and nobody has looked at its result: r1 . MPI_Recv returned error",
    ),
    _row(
        "programs",
        "a rank imports mpixla late",
        PLAIN,
        """
        print("ended", mpixla.allreduce(x, op=MPI.SUM).sum())
        """,
        "",
        status=0,
        prints=r"ended 56\.0\s+ended 56\.0",
        before="import time\nfrom mpi4py import MPI\ntime.sleep(2 * MPI.COMM_WORLD.rank)\n",
    ),
    _row(
        "programs",
        "a rank never imports mpixla",
        TIMEOUT,
        "",
        "mpixla: rank 0 has waited for .* in `import mpixla`",
        before="import sys\nfrom mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1: sys.exit(0)\n",
    ),
    _row(
        "programs",
        "a forked process communicates",
        PLAIN,
        """
        mpixla.barrier()
        mark()
        child = os.fork()
        if child == 0:
            caught(lambda: mpixla.allreduce(x, op=MPI.SUM))
            os._exit(0)
        os.waitpid(child, 0)
        print("ended", mpixla.allreduce(x, op=MPI.SUM).sum())
        """,
        "rank 0 caught ValueError: this process was forked from one that runs MPI",
        status=0,
        prints=r"ended 56\.0\s+ended 56\.0",
    ),
    _row(
        "programs",
        "no disk is left for the timeline",
        TRACE,
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))
        mark()
        for _ in range(1000):
            y = mpixla.allreduce(x, op=MPI.SUM)
        print("ended", y.sum())
        """,
        r"mpixla: .*(timeline|MPIXLA_TRACE|trace)",
        status=0,
        prints=r"ended 56\.0\s+ended 56\.0",
    ),
]

FAULTS = [
    *_losses(),
    *ENDS,
    *MESSAGES,
    *(_mismatch(name, ranks=2) for name in MISMATCHES),
    *(_mismatch(name, ranks) for name in ("another reduction", "another order") for ranks in (3, 4)),
    *FREED,
    *MEMORY,
    *SIGNALS,
    *PROGRAMS,
]
