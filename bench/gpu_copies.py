"""The contender raw: copies between a GPU and pinned memory of the host, by the driver alone.

python bench/gpu_copies.py SOCKET, under mpirun. The OP of a chain is one of those in OPS.
"""

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_void_p
from typing import Any

from mpi4py import MPI

from worker import repeat, serve

comm = MPI.COMM_WORLD.Dup()


class Gpu:
    """The driver, with a context that is current, and two streams."""

    def __init__(self) -> None:
        is_fake = os.environ.get("MPIXLA_FAKE_DEVICE", "0") not in ("", "0")
        self._driver = ctypes.CDLL(_fake() if is_fake else "libcuda.so.1")
        self.call("cuInit", 0)
        self.streams = [c_void_p() for _ in range(2)]
        if is_fake:  # which has no functions that make them
            self._driver.fake_stream_take.restype = self._driver.fake_context_get.restype = c_void_p
            self.call("cuCtxPushCurrent_v2", c_void_p(self._driver.fake_context_get(0)))
            self.streams = [c_void_p(self._driver.fake_stream_take(0)) for _ in range(2)]
            return
        count, device, context = c_int(), c_int(), c_void_p()
        self.call("cuDeviceGetCount", byref(count))
        self.call("cuDeviceGet", byref(device), comm.rank % count.value)
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)
        for stream in self.streams:
            self.call("cuStreamCreate", byref(stream), 1)  # it waits for no other

    def call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._driver, function)(*arguments)
        if code != 0:
            raise RuntimeError(f"{function} returned {code}")

    @functools.cache  # noqa: B019 there is one
    def memory(self, size: int) -> tuple[c_void_p, c_void_p]:
        """Return pinned memory of the host, and memory of the GPU."""
        on_host, on_device = c_void_p(), c_void_p()
        self.call("cuMemHostAlloc", byref(on_host), c_size_t(size), 1)
        self.call("cuMemAlloc_v2", byref(on_device), c_size_t(size))
        ctypes.memset(on_host, 1, size)
        return on_host, on_device

    def out(self, size: int, stream: int = 0) -> None:
        on_host, on_device = self.memory(size)
        self.call("cuMemcpyDtoHAsync_v2", on_host, on_device, c_size_t(size), self.streams[stream])

    def into(self, size: int, stream: int = 0) -> None:
        on_host, on_device = self.memory(size)
        self.call("cuMemcpyHtoDAsync_v2", on_device, on_host, c_size_t(size), self.streams[stream])

    def wait(self, stream: int = 0) -> None:
        self.call("cuStreamSynchronize", self.streams[stream])


def _fake() -> str:
    import fake_gpu

    return str(fake_gpu.PATH)


gpu = Gpu()


def out_and_in(size: int) -> None:
    """Copy an array to the host, then back: the transport `host` needs all of it before it goes back."""
    gpu.out(size)
    gpu.wait()
    gpu.into(size)


def out_beside_in(size: int) -> None:
    """Copy both ways at once. The memory on the host is not the same."""
    gpu.out(size, 0)
    gpu.into(size + 1, 1)
    gpu.wait(0)
    gpu.wait(1)


OPS: dict[str, Callable[[int], None]] = {
    "out": gpu.out,
    "in": gpu.into,
    "out_and_in": out_and_in,
    "out_beside_in": out_beside_in,
}


def chain(op: str, _: str, size: int, long: int, short: int, times: int) -> list[list[float]]:
    gpu.memory(size)
    gpu.memory(size + 1)

    def run(length: int) -> None:
        for _ in range(length):
            OPS[op](size)
        gpu.wait()

    run(1)
    return repeat([lambda: run(long), lambda: run(short)], times, comm.Barrier)


if __name__ == "__main__":
    serve(sys.argv[1], comm.rank, {"chain": chain})
