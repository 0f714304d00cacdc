"""The names that packages beside mpixla need in addition to its public ones; as in jax.extend, they may change.

run, compat, distributed, trace and tools use mpixla by these, by its public names and by ``base/`` alone
(tests/launch/test_layers.py).
"""

from .checks.exit import can_abort, capture_hook_text, end_job, when_done
from .core.rules import with_batch_at
from .jaxprs.spmd import Primitive
from .mpi import gpu
from .mpi.abort import abort_job, exit_at_once
from .mpi.arrival import limit_wait, run_timer
from .mpi.comm import comm_of, own_comm
from .mpi.command_line import RankZeroParser, ignore_closed_pipe, print_and_exit
from .mpi.hosts import has_several, host_of_each
from .mpi.mpi import wrong_launcher
from .mpi.native import check_result, lib
from .ops.arguments import leave_ranks_to_calls
from .patches import describe_installed, require_hook
from .satellites import own_process
