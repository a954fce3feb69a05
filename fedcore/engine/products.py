"""Which library computes the products of float32 matrices on a CPU: MKL, or oneDNN where it is faster.

On AMD's processors MKL uses AVX2 where oneDNN uses AVX-512.  From Zen 5 on, whose units are 512 bits wide, products of
a cohort are up to twice as fast by oneDNN, and equal to rounding.  Zen 4 computes AVX-512 in two halves: on the EPYC
that we measured, with two threads, rounds of an MLP take 1.1 to 1.2 times as long by oneDNN and those of CNNs about as
long, so that MKL stays.

torch computes products by oneDNN where `torch.backends.mkldnn.matmul.fp32_precision` allows bfloat16.  Processors
without AMX have no such shortcut and keep float32's accuracy; those with AMX lose bits, and on them the products stay
MKL's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from ..support import checks
from .undisturbed import Held

LIBRARIES = ("auto", "mkl", "onednn")
TOLERANCE = 4.0  # how many times the error of MKL's products oneDNN's may have

_asked, _precision = "auto", Held()


def use(library: str) -> None:
    """Compute the products of all federations in this process by "mkl" or "onednn"; "auto": by the rule of `library`.

    Raises ValueError for another name, or while a federation is computing.
    """
    global _asked
    checks.choice("library", library, LIBRARIES)
    with _precision.lock:
        if _precision.inside:
            raise ValueError(f"library={library!r} while a federation is computing; choose it before the first round")
        _asked = library


def library() -> str:
    """The library of float32 products on this machine's CPU: what `use` has chosen, else "onednn" on AMD's processors
    from Zen 5 on if its products are as accurate as MKL's there, else "mkl".

    A torch that cannot choose has "mkl", which stands for whatever library it was built with.
    """
    if _switch() is None:
        return "mkl"
    if _asked != "auto":
        return _asked
    return "onednn" if _is_wide_amd() and _is_accurate() else "mkl"


@contextlib.contextmanager
def fastest() -> Iterator[None]:
    """A block in which torch computes float32 products by `library()`; afterwards as the caller had chosen."""
    faster = library() == "onednn"
    with _precision.values((_switch(), "fp32_precision", "bf16")) if faster else contextlib.nullcontext():
        yield


@cache
def _switch() -> Any:
    """torch's switch; None if this torch has none."""
    switch = getattr(torch.backends.mkldnn, "matmul", None)
    usable = torch.backends.mkldnn.is_available() and hasattr(switch, "fp32_precision")
    return switch if usable else None


@cache
def _is_wide_amd() -> bool:
    """Whether this is a processor of AMD with AVX-512 units of full width, that is Zen 5 or later, and without AMX."""
    able = getattr(torch.cpu, "get_capabilities", dict)()
    wide = able.get("avx512_vp2intersect") or able.get("avx_vnni")  # which Zen 4 lacks
    return "AMD" in str(able.get("cpu_name")) and bool(able.get("avx512_f") and wide) and not able.get("amx_tile")


@cache
def _is_accurate() -> bool:
    """Whether oneDNN's product of two float32 matrices is as close to the exact one as MKL's, up to `TOLERANCE`."""
    switch, errors = _switch(), {}
    with _precision.lock:
        before = switch.fp32_precision
        try:
            for precision in ("none", "bf16"):
                switch.fp32_precision = precision
                errors[precision] = _error()
        finally:
            switch.fp32_precision = before
    return errors["bf16"] <= TOLERANCE * errors["none"]


def _error() -> float:
    """The largest error of a product of two random float32 matrices."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 784, generator=generator) for _ in range(2))
    return (a @ b.T - a.double() @ b.double().T).abs().max().item()
