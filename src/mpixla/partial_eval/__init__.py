"""Calls stay in place while JAX takes programs apart: no call is dropped, made twice, moved, or made by fewer ranks.

JAX takes a program apart for derivatives, batches and checkpoints, and each of these steps is a problem of its own:

| problem: JAX ...                                     | rule                                  | test (tests/spmd)    |
|------------------------------------------------------|---------------------------------------|----------------------|
| drops calls of a branch or checkpoint with no result | checkpoints.py: one more result       | test_reveal.py,      |
| that is used                                         |                                       | test_control_flow.py |
| hoists a call out of a scan in a checkpoint          | checkpoints.py: operands are taken as | test_control_flow.py |
|                                                      | changing                              |                      |
| hoists a call out of a scan that is differentiated   | scan.py: nothing is hoisted           | test_control_flow.py |
| runs a while loop in a checkpoint twice              | while_loops.py: it is kept whole      | test_control_flow.py |
| has no reverse mode of a while loop with a constant  | while_loops.py: the constant goes     | test_control_flow.py |
| that is only compared                                |                                       |                      |
| has no batch of a loop whose condition communicates  | while_loops.py: the body decides      | test_solvers.py      |
| makes a call of the next jax.checkpoint twice        | remat3.py: it is refused              | launch/test_hooks.py |
| takes a tangent or cotangent for a constant on one   | constant_tangents.py: batch and       | test_jvp.py,         |
| rank                                                 | derivative as of the other arrays     | test_requests.py     |

The rules apply to programs that communicate only. tests/spmd/test_jaxprs.py has JAX check the programs that they make.
``install`` of a file puts its rules into JAX (patches/__init__.py).
"""
