"""The beginning of every program's text: computation on its own rank, in jax.numpy.

oracle.py says the same in NumPy. Each is compiled as one, which saves most of the time of programs that run eagerly.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint
from mpi4py import MPI

import mpixla

jax.config.update("jax_enable_x64", True)
world = MPI.COMM_WORLD


@functools.partial(jax.jit, static_argnums=1)
def fit(x, shape):
    """Repeat an array's items in another shape; zeros of an empty one, or ones of a type without zero."""
    if x.size == 0:  # with the batch that it has in a vmap
        x = jnp.append(x, jnp.ones(1, x.dtype) if x.dtype.name == "float8_e8m0fnu" else jnp.zeros(1, x.dtype))
    return jnp.resize(x, shape)


@functools.partial(jax.jit, static_argnums=1)
def cast(x, dtype):
    """Convert small numbers to another type, without what that cannot express."""
    whole = (x.real if jnp.iscomplexobj(x) else x).astype(np.float32).astype(np.int32)
    if dtype == "bool":
        return whole > 0
    return (abs(whole) if dtype.startswith("uint") else whole).astype(dtype)


@jax.jit
def tame(x):
    """Return the nearest of the small numbers with which all types compute exactly."""
    if x.dtype == bool:
        return x
    if jnp.iscomplexobj(x):
        return (tame(x.real) + 1j * tame(x.imag)).astype(x.dtype)
    if jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.clip(x, 0 if jnp.issubdtype(x.dtype, jnp.unsignedinteger) else -3, 3)
    low, high = {"float8_e8m0fnu": (1, 4)}.get(x.dtype.name, (-1, 1) if x.dtype.itemsize == 1 else (-3, 3))
    wide = x if x.dtype.itemsize > 2 else x.astype(np.float32)
    clipped = jnp.clip(wide, low, high)
    return (clipped if x.dtype.name == "float8_e8m0fnu" else jnp.round(clipped)).astype(x.dtype)


@jax.jit
def laid_out_by_columns(x):
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))[::-1]))


def columns_first(x):
    """Return the array, in another layout than rows of numbers where this is inside of a program.

    From a program that gives a result in such a layout JAX's jnp.resize takes the items in the wrong order.
    """
    return laid_out_by_columns(x) if isinstance(x, jax.core.Tracer) else x


def in_halves(x, comm, **how):
    """Exchange halos, with something computed between the two halves."""
    return mpixla.overlap(mpixla.halo_start(x, comm, **how), lambda x: x, x)[0]


def custom_jvp(f):
    """Return the same function, with the rule for its derivative given."""
    g = jax.custom_jvp(f)
    g.defjvp(lambda primals, tangents: jax.jvp(f, primals, tangents))
    return g


def custom_vjp(f):
    g = jax.custom_vjp(f)
    g.defvjp(lambda x: jax.vjp(f, x), lambda back, ct: back(ct))
    return g


def the_first(a, b, datatype):
    """Return the array of the first rank: a user's reduction that is not commutative."""
    b[:] = a


def most_bytes(a, b, datatype):
    """Return the greatest of each byte: a user's reduction that is commutative."""
    np.maximum(np.frombuffer(a, np.uint8), np.frombuffer(b, np.uint8), out=np.frombuffer(b, np.uint8))
