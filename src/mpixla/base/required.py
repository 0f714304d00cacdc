"""The names of JAX that mpixla needs beyond the documented API, with the reason for each.

Functions and rules of JAX that mpixla replaces, and can do without, are in ``patches`` and ``partial_eval``.
"""

import jax

from . import tested

try:
    # Primitive is documented as part of jax.extend, whose import takes as long as that of all of mpixla (it imports
    # Pallas). trace_state_clean tells whether JAX is tracing: each call of a sealed program and each eager operation
    # asks.
    from jax._src.core import Primitive, trace_state_clean

    # The class of effects and the registries of their types: JAX has no public way to declare an ordered effect, and
    # without one XLA may reorder the communication inside a program.
    from jax._src.effects import (
        Effect,
        control_flow_allowed_effects,
        custom_derivatives_allowed_effects,
        ordered_effects,
        partial_eval_kept_effects,
        remat_allowed_effects,
        shardable_ordered_effects,
    )

    # The user's frames: JAX names them in compiled programs, and mpixla in reports.
    from jax._src.source_info_util import is_user_filename, register_exclusion, user_context

    # True once JAX has started; the public functions that tell start it.
    from jax._src.xla_bridge import backends_are_initialized as jax_has_started

    # Rules for primitives in partial evaluation, which the documented registries for derivatives do not cover.
    from jax.interpreters.partial_eval import custom_partial_eval_rules, partial_eval_jaxpr_custom_rules
except ImportError as e:
    raise ImportError(
        f"mpixla cannot use JAX {jax.__version__}: {e}. Install one that it was tested with, "
        f"pip install 'jax<={tested.NEWEST}', or a newer mpixla, pip install --upgrade mpixla."
    ) from None

# JAX's treatment of an effect is decided by the registries that have its type.
EFFECT_REGISTRIES = (
    ordered_effects,
    # JAX itself would refuse an ordered effect on several devices with a message about its internals; our
    # lowering rule refuses it with a message that has the remedy.
    shardable_ordered_effects,
    control_flow_allowed_effects,
    custom_derivatives_allowed_effects,
    remat_allowed_effects,
    partial_eval_kept_effects,
)
