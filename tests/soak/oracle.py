"""The right results of programs, in NumPy, from the inputs of all ranks; and their derivatives.

A value is a list of arrays, one for each rank of the world. Evaluating a program keeps a tape: each call of a model
with its operands and results. The tape, run forward or backward, gives derivatives by the matrix of each call, which
comes from differences of the model: models are polynomials of degree two at most in each single number, of which
central differences are exact. Where they are not (extremes) the step says what is linear there.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Arrays = list[np.ndarray]
Model = Callable[[list[Arrays]], list[Arrays]]


class Value:
    """One value on all ranks; two of them are never the same, so that a tape can tell them apart."""

    def __init__(self, arrays: Arrays):
        self.arrays = [np.asarray(a) for a in arrays]


class Tape(list):
    """Calls of models, in order: (model or what is linear there, operands, results)."""

    def apply(self, model: Model, operands: list[Value], linear_at: Callable[..., Model] | None = None) -> list[Value]:
        arrays = [v.arrays for v in operands]
        results = [Value(a) for a in model(arrays)]
        self.append((linear_at(arrays) if linear_at else model, operands, results))
        return results

    def forward(self, tangents: dict[Value, np.ndarray]) -> dict[Value, np.ndarray]:
        """Propagate the tangents of some values, flat, to all values that depend on them."""
        tangents = dict(tangents)
        for model, operands, results in self:
            known = [v for v in operands if v in tangents]
            if not known:
                continue
            total = 0
            for v in dict.fromkeys(known):
                total = total + _matrix(model, operands, results, v) @ tangents[v]
            tangents.update(_pieces(total, results))
        return tangents

    def backward(self, cotangents: dict[Value, np.ndarray]) -> dict[Value, np.ndarray]:
        """Propagate the cotangents of some values, flat, to all values on which they depend."""
        cotangents = dict(cotangents)
        for model, operands, results in reversed(self):
            if not any(v in cotangents for v in results):
                continue
            total = np.concatenate([cotangents.get(v, np.zeros(flat(v).size)) for v in results])
            for v in dict.fromkeys(operands):
                if v.arrays[0].dtype == np.float64:
                    found = _matrix(model, operands, results, v).T @ total
                    cotangents[v] = cotangents.get(v, 0) + found
        return cotangents


def flat(value: Value | Arrays) -> np.ndarray:
    """Return all ranks' items in a row, as doubles; no items of arrays without a derivative."""
    arrays = value.arrays if isinstance(value, Value) else value
    if any(a.dtype != np.float64 for a in arrays):
        return np.zeros(0)
    return np.concatenate([a.ravel() for a in arrays])


def unflat(items: np.ndarray, like: Arrays) -> Arrays:
    ends = np.cumsum([a.size for a in like])
    return [part.reshape(a.shape) for part, a in zip(np.split(items, ends[:-1]), like, strict=True)]


def _pieces(items: np.ndarray, values: list[Value]) -> dict[Value, np.ndarray]:
    ends = np.cumsum([flat(v).size for v in values])
    return dict(zip(values, np.split(items, ends[:-1]), strict=True))


def _matrix(model: Model, operands: list[Value], results: list[Value], by: Value) -> np.ndarray:
    """Return the derivative of the results, flat, by one operand: a column for each of its items."""
    at = flat(by)

    def moved(i: int, step: float) -> np.ndarray:
        there = at.copy()
        there[i] += step
        arrays = [unflat(there, v.arrays) if v is by else v.arrays for v in operands]
        return np.concatenate([flat(a) for a in model(arrays)])

    columns = [(moved(i, 1) - moved(i, -1)) / 2 for i in range(at.size)]
    rows = sum(flat(v).size for v in results)
    return np.stack(columns, 1) if columns else np.zeros((rows, 0))


# What a rank computes on its own: prelude.py in NumPy.


def fit(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.resize(x, shape) if x.size else np.full(shape, x.dtype.name == "float8_e8m0fnu", x.dtype)


def cast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    whole = x.real.astype(np.float32).astype(np.int32) if x.dtype.kind == "c" else x.astype(np.float32).astype(np.int32)
    if dtype.kind == "b":
        return whole > 0
    return (abs(whole) if dtype.kind == "u" else whole).astype(dtype)


def tame(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "b":
        return x
    if x.dtype.kind == "c":
        return (tame(x.real) + 1j * tame(x.imag)).astype(x.dtype)
    if x.dtype.kind in "iu":
        return np.clip(x, 0 if x.dtype.kind == "u" else -3, 3).astype(x.dtype)
    wide = x.astype(np.float64)
    if x.dtype.name == "float8_e8m0fnu":
        return np.clip(wide, 1, 4).astype(x.dtype)
    limit = 1 if x.dtype.itemsize == 1 else 3
    return np.round(np.clip(wide, -limit, limit)).astype(x.dtype)


def same(got: Any, want: np.ndarray, exact: bool) -> bool:
    """Return whether a result is right: type, shape, and every value. Derivatives may differ in the last bits.

    Zeros are equal whatever their sign. With `exact` false, numbers may differ by 1e-9 of the greatest: the shares of
    a tie (thirds) are the only ones that are rounded, and results add up a few hundred of them at most.
    """
    got = np.asarray(got)
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if exact and want.dtype.kind in "biu":
        return bool(np.array_equal(got, want))
    kind = np.complex128 if want.dtype.kind == "c" else np.float64
    a, b = got.astype(kind), want.astype(kind)
    if exact:
        return bool(np.array_equal(a, b, equal_nan=True))
    scale = max(1.0, float(abs(b).max(initial=0)))
    return bool((abs(a - b) <= 1e-9 * scale).all())
