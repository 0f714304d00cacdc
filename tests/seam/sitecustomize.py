"""With this folder in PYTHONPATH and MPIXLA_FAKE_DEVICE=1, mpixla runs its device handlers, on a fake GPU.

Python runs this file in every process when it starts. It does nothing until mpixla is imported, and then lets
`fake_gpu` prepare that; a sitecustomize that was there before runs as well.
"""

import os
import sys


def _run_the_other():
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec and spec.loader:
        spec.loader.exec_module(module_from_spec(spec))


class _Finder:
    """Finds mpixla as Python would, and wraps its import. It may be looked for several times before that."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "mpixla" or cls not in sys.meta_path:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(cls)
        try:
            spec = find_spec(name)
        finally:
            sys.meta_path.insert(0, cls)
        if spec and spec.loader:
            import fake_gpu

            run = spec.loader.exec_module

            def exec_module(module):
                with fake_gpu.prepared():
                    run(module)

            spec.loader.exec_module = exec_module
        return spec


if os.environ.get("MPIXLA_FAKE_DEVICE", "0") not in ("", "0"):
    sys.meta_path.insert(0, _Finder)
    os.environ["MPIXLA_WINDOWS"] = "0"  # as in a program for a GPU, for which this one is not compiled
_run_the_other()
