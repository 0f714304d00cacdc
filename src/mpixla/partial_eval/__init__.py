"""Calls stay in place while JAX takes programs apart: no call is dropped, made twice, moved, or made by fewer ranks.

JAX takes a program apart for derivatives, batches and checkpoints, and each of these steps is a problem of its own:

| problem: JAX ...                                        | rule                              | test (tests/spmd)      |
|---------------------------------------------------------|-----------------------------------|------------------------|
| drops calls of a branch or checkpoint with no result    | keep.py: one more result          | test_reveal.py,        |
| that is used                                            | (checkpoints.py installs it)      | test_control_flow.py   |
| hoists a call out of a scan in a checkpoint             | keep.py: operands as if they      | test_control_flow.py   |
|                                                         | changed (checkpoints.py)          |                        |
| hoists a call out of a scan that is differentiated      | scan.py: hoists nothing           | test_control_flow.py   |
| runs a while loop in a checkpoint twice                 | loops.py: keeps it whole          | test_control_flow.py   |
|                                                         | (while_loops.py)                  |                        |
| has no reverse mode of a while loop with a constant     | loops.py: removes the constant    | test_control_flow.py   |
| that is only compared                                   | (while_loops.py)                  |                        |
| has no batch of a loop whose condition communicates     | loops.py: decides in the body     | test_solvers.py        |
|                                                         | (while_loops.py)                  |                        |
| makes a call of the next jax.checkpoint twice           | remat3.py: refuses it             | launch/test_hooks.py   |
| takes a tangent or cotangent for a constant on one rank | shadow.py: batch, derivative of   | test_jvp.py,           |
|                                                         | the call's other arrays           | test_requests.py       |

The rules apply to programs that communicate only. ``install`` of a file puts its rules into JAX (patches/__init__.py).
"""
