"""Exact sums of numbers and of products, as accumulators of 64-bit words (native/exact/exact_handlers.c).

The sum of accumulators is the same in any order. These primitives have no derivative or batching rules: the operations
composed of them do (ops/exact.py).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray

from ..jaxprs.spmd import with_shape
from .helper import make_helper

# Words of an accumulator of numbers, and of one of products of float64 (native/exact/exact_sum.h).
_WORDS, _WORDS_OF_PRODUCTS = 70, 138


def _accumulator_types(*arrays: ShapedArray) -> list[ShapedArray]:
    is_wide = len(arrays) == 2 and arrays[0].dtype == np.float64
    words = _WORDS_OF_PRODUCTS if is_wide else _WORDS
    return [with_shape(arrays[0], (*arrays[0].shape[:-1], words), dtype=np.dtype(np.int64))]


def _rounded_types(words: ShapedArray, *, dtype: np.dtype, **form: int) -> list[ShapedArray]:
    return [with_shape(words, (*words.shape[:-1], 1), dtype=dtype)]


_add_p = make_helper("exact_add", _accumulator_types)
_round_p = make_helper("exact_round", _rounded_types, ("digits", "largest", "lowest"))


def sum_lines(*lines: jax.Array) -> jax.Array:
    """Return exact sums as accumulators: of each line of one array along its last axis, or of two arrays' products.

    The arrays are float32 or float64.
    """
    return _add_p.bind(*lines)[0]


def round_accumulators(words: jax.Array, dtype: Any) -> jax.Array:
    """Round accumulators of exact sums, each once, to ``dtype``, and return the numbers."""
    form = jnp.finfo(dtype)
    wide = np.dtype(np.float64 if form.bits == 64 else np.float32)
    lowest = int(np.log2(float(form.smallest_subnormal)))
    largest = int(np.float64(form.max).view(np.int64))
    digits = int(form.nmant) + 1
    (values,) = _round_p.bind(words, digits=digits, largest=largest, lowest=lowest, dtype=wide)
    return values[..., 0].astype(dtype)
