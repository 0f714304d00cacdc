"""What is to be done before a program first runs (distributed/_cliques.py).

XLA makes what its collectives need in the middle of the first execution. JAX has no place before that where it is known
which devices a program is for. Every program is made here, and is always first dispatched in Python.
"""

from collections.abc import Callable
from typing import Any

from . import replace

LOST = "mpixla.distributed is refused."
_BUILD = "jax._src.interpreters.pxla:UnloadedMeshExecutable.build_unsafe_call"
NEEDS = {
    _BUILD: ("self",),
    "jax._src.interpreters.pxla:ExecuteReplicated.__call__": ("self",),
    "jax._src.interpreters.pxla:ExecuteReplicated.xla_executable": None,
}


def install(prepare: Callable[[Any, tuple[Any, ...]], None]) -> None:
    """Calls ``prepare`` with each program's executable, and its devices in XLA's order, before it first runs."""
    from jax._src.interpreters import pxla

    execute = pxla.ExecuteReplicated.__call__
    unprepared: dict[int, tuple[Any, ...]] = {}

    class Unprepared(pxla.ExecuteReplicated):
        __slots__ = ()

        def __call__(self, *args: Any) -> Any:
            devices = unprepared.get(id(self))
            if devices is not None:
                prepare(self.xla_executable, devices)
                unprepared.pop(id(self), None)
            self.__class__ = pxla.ExecuteReplicated  # type: ignore[assignment]
            return execute(self, *args)

        def __del__(self) -> None:
            unprepared.pop(id(self), None)

    @replace(_BUILD)
    def build_unprepared(build: Any, self: Any) -> Any:
        call = build(self)
        unprepared[id(call)] = tuple(self.device_list)
        call.__class__ = Unprepared
        return call
