"""One token for all dispatches of programs that show the effect, in place of the predecessor's.

JAX would pass the token of a failed program to every later one and so fail them all. The order does not need tokens:
dispatches from one thread to one device run in program order (ARCHITECTURE.md, "Order"). And creating a token takes as
long as the rest of a dispatch.
"""

from typing import Any

import jax

from ..base.patching import find_in_jax, replace_function
from ..base.state import state
from ..jaxprs.effect import CommunicationEffect

LOST = "After a program without a result has failed, later ones fail as well, and a call of one takes 0.2 ms more."

_tokens: dict[tuple[Any, ...], Any] = {}  # for each list of devices


def install() -> None:
    """Replace JAX's function for a dispatch's token: the effect has one for each list of devices. Set state.tokens."""
    find_in_jax("jax._src.dispatch:runtime_tokens.current_tokens")
    clear = find_in_jax("jax._src.dispatch:runtime_tokens.clear")

    @replace_function("jax._src.dispatch:RuntimeTokenSet.get_token_input", "self", "eff", "devices")
    def same_token(next_token: Any, self: Any, effect: Any, devices: list[Any]) -> Any:
        """Return one token for all communicating programs on the same devices; JAX's own for other effects."""
        if not isinstance(effect, CommunicationEffect):
            return next_token(self, effect, devices)
        key = tuple(devices)
        if key not in _tokens:
            self.current_tokens.pop(effect, None)
            with jax.transfer_guard("allow"):
                _tokens[key] = next_token(self, effect, devices)
        return _tokens[key]

    # JAX's exit handlers would print the failures of programs whose tokens it keeps.
    state.tokens = clear
