"""Hashes of values: the same in every process for values that compute the same, different for all others.

A run continues from a checkpoint, and a sweep uses a stored run, only if the hashes are equal.  Numbers and strings are
hashed as they are, arrays with all their entries, and functions and classes of the user by their compiled code (so that
comments and layout do not count) with the constants, functions and classes that they refer to.  Functions and classes
of libraries, including this package, are hashed by their names alone.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.util
import itertools
import operator
import os
import random
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_INSTALLED = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]  # "data" is all
_INSTALLED += [*site.getsitepackages(), site.getusersitepackages(), Path(torch.__file__).parents[1]]
_INSTALLED += [Path(spec.origin).parent for name in ("fedcore", "fedbook") if (spec := importlib.util.find_spec(name))]
_LIBRARIES = tuple(f"{folder}{os.sep}" for folder in _INSTALLED)
_OF_EVERY_MODULE = {*vars(nn.Module()), "training"}
_SPECIAL = ("__init__", "__post_init__", "__call__", "__getattr__", "__getitem__", "__len__")
GENERATORS = random.Random | np.random.Generator | np.random.RandomState | torch.Generator
_PLAIN = str | bytes | int | float | complex | None | torch.dtype | torch.device | range


def short(content: str | bytes) -> str:
    """The first 16 hexadecimal digits of SHA-256, which all hashes of this package are."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


def digest(*values: Any, containers: bool = True) -> str:
    """A hash of values.

    containers=False leaves out the lists, mappings and objects that functions refer to, because a function may write to
    them, such as a probe to its record.
    """
    return short(Describer(containers).text(values))


def network(module: nn.Module, parameters: bool = False, without: Iterable[Tensor] = ()) -> tuple[Any, ...]:
    """All that determines what a network computes: its layers with their constants and code, its buffers, and which
    parameters are trained; with `parameters` also their values.  without: tensors that are left out."""
    skipped = {id(b) for b in without}
    layers = [(name, type(layer), _constants(layer, skipped)) for name, layer in module.named_modules()]
    trained = [(name, p.requires_grad, p if parameters else None) for name, p in module.named_parameters()]
    return layers, trained, [(name, b) for name, b in module.named_buffers() if id(b) not in skipped]


class Describer:
    """Texts of values.  Each object is described once; within its own description (a cycle) it is its name."""

    def __init__(self, containers: bool = True) -> None:
        self.containers, self.known = containers, {}
        self.alive: list[Any] = []  # keeps objects alive, so that no id is used twice

    def text(self, value: Any) -> str:
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, os.PathLike):
            return repr(os.fspath(value))
        if id(value) not in self.known:
            self.alive.append(value)
            self.known[id(value)] = _name(value)
            self.known[id(value)] = self.inside(value)
        return self.known[id(value)]

    def inside(self, value: Any) -> str:
        if isinstance(value, Tensor | np.ndarray):
            a = np.ascontiguousarray(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)
            content = self.text(a.tolist()).encode() if a.dtype == object else a.reshape(-1).view(np.uint8).data
            return f"{a.dtype.str}{a.shape}{short(content)}"
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{self.text(k)}: {self.text(v)}' for k, v in value.items())}}}"
        if isinstance(value, list | tuple):
            return f"({', '.join(map(self.text, value))})"
        if isinstance(value, set | frozenset):
            return f"{{{', '.join(sorted(map(self.text, value)))}}}"
        return f"{_name(value)} {short(', '.join(map(self.text, self.parts(value))))}"

    def parts(self, value: Any) -> Iterable[Any]:
        """The parts in which this value can differ from other values with its name."""
        if isinstance(value, functools.partial):
            return value.func, value.args, value.keywords
        if isinstance(value, MethodType):
            return value.__self__, value.__func__
        if isinstance(value, staticmethod | classmethod):
            return (value.__func__,)
        if isinstance(value, property):
            return (value.fget,)
        if isinstance(value, CodeType):
            return value.co_code, value.co_names, value.co_varnames, value.co_freevars, value.co_consts
        if isinstance(value, FunctionType):
            return self.function(value)
        if isinstance(value, type):
            kept = [(k, v) for k, v in vars(value).items() if k in _SPECIAL or not k.startswith("__")]
            return (*kept, *value.__bases__) if is_own(value) else ()
        if isinstance(value, nn.Module):
            return network(value, parameters=True)
        if hasattr(value, "fingerprint"):
            return (value.fingerprint(),)
        if isinstance(value, ModuleType):
            return ()
        if isinstance(value, GENERATORS | Iterator) and not is_own(type(value)):
            return (state(value),)
        if hasattr(value, "__dict__") or is_own(type(value)):  # includes the values of __slots__
            return type(value), object.__getstate__(value)
        return (without_address(repr(value)),)  # a date, a decimal number, a pattern

    def function(self, f: FunctionType) -> Iterable[Any]:
        """A function's code, its defaults, and the variables outside of it that it uses."""
        used = {k: v for k, v in around(f).items() if self.containers or not _is_container(v)}
        used |= {f"its {k}": v for k, v in vars(f).items() if is_own(f) and k != "__wrapped__"}
        return f.__code__ if is_own(f) else None, f.__defaults__, f.__kwdefaults__, used


def state(value: GENERATORS | Iterator) -> Any:
    """The state of a generator of random numbers or of an iterator, as far as an iterator shows it."""
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    if isinstance(value, GeneratorType):
        return value.gi_frame and (value.gi_frame.f_lasti, value.gi_frame.f_locals)
    return without_address(repr(value)), operator.length_hint(value, -1)


def around(f: FunctionType) -> dict[str, Any]:
    """The variables outside of a function that it uses, by name: those of its closure and, for a function of the user,
    globals, attributes of the user's modules, and the code of the user's modules that it imports itself."""
    found = dict(zip(f.__code__.co_freevars, map(_content, f.__closure__ or ()), strict=True))
    if not is_own(f):
        return found
    within = codes(f.__code__)
    names = sorted({name for code in within for name in code.co_names})
    found |= {k: f.__globals__[k] for k in names if k in f.__globals__}
    modules, seen = [(k, v) for k, v in found.items() if isinstance(v, ModuleType)], set()
    for module, there in modules:  # also modules inside modules, as in `rules.robust.combine`
        place = next(iter(getattr(there, "__path__", ())), getattr(there, "__file__", None))
        if there not in seen and _is_owned(place):
            inside = {f"{module}.{k}": vars(there)[k] for k in names if k in vars(there)}
            modules += [(k, v) for k, v in inside.items() if isinstance(v, ModuleType)]
            found |= inside
            seen.add(there)
    imported = {i.argval for code in within for i in dis.get_instructions(code) if i.opname == "IMPORT_NAME"}
    package = f.__globals__.get("__package__")
    named = [name for one in sorted(imported) for name in ([one, f"{package}.{one}"] if package else [one])]
    return found | {f"import {name}": code for name in named if (code := _source(name))}


@functools.cache
def _source(module: str) -> CodeType | None:
    """The code of a module of the user; None for a module of a library."""
    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
        if spec is None or not _is_owned(spec.origin):
            return None
        spec = spec if top == module else importlib.util.find_spec(module)
        return spec.loader.get_code(module)
    except (ImportError, AttributeError, ValueError, SyntaxError):  # importing it will raise the error
        return None


def last_computed(module: nn.Module, called: nn.Module) -> list[Tensor]:
    """The tensors, other than parameters and buffers, that a module's layers hold and that differ in a copy of the
    module after a forward pass."""
    held = zip(module.modules(), called.modules(), strict=False)
    pairs = [(v, vars(b).get(k)) for a, b in held for k, v in vars(a).items() if k not in _OF_EVERY_MODULE]
    return [
        x
        for v, w in pairs
        for x, y in itertools.zip_longest(_tensors(v), _tensors(w))
        if x is not None and not (y is not None and x.dtype == y.dtype and x.device == y.device and torch.equal(x, y))
    ]


def _constants(layer: nn.Module, without: Collection[int]) -> dict[str, Any]:
    """The attributes of a layer other than its parameters, buffers and layers.

    Results of the last forward pass are left out: tensors with a gradient, tensors whose ids are in `without`, and
    None, which a forward pass may replace by such a tensor.
    """
    own = is_own(type(layer))
    held = {k: v for k, v in vars(layer).items() if k not in _OF_EVERY_MODULE and (own or not k.startswith("_"))}
    return _kept(held, without)


def _kept(value: Any, without: Collection[int]) -> Any:
    """The value without the results that `_constants` leaves out, at any depth of lists and mappings; None if the
    value itself is left out."""
    if isinstance(value, dict):
        return {k: kept for k, v in value.items() if (kept := _kept(v, without)) is not None}
    if type(value) in (list, tuple):
        return [kept for v in value if (kept := _kept(v, without)) is not None]
    return None if isinstance(value, Tensor) and (value.grad_fn is not None or id(value) in without) else value


def _tensors(value: Any) -> list[Tensor]:
    parts = value.values() if isinstance(value, dict) else value if type(value) in (list, tuple) else ()
    return [value] if isinstance(value, Tensor) else [t for part in parts for t in _tensors(part)]


def is_own(value: type | FunctionType) -> bool:
    """Whether a class or function is the user's, and not part of this package or an installed library."""
    if isinstance(value, FunctionType):
        return not value.__code__.co_filename.startswith(_LIBRARIES)
    file = getattr(sys.modules.get(value.__module__), "__file__", None) or ""
    return value.__module__ not in sys.builtin_module_names and not file.startswith(_LIBRARIES)


def _is_owned(file: str | None) -> bool:
    """Whether this is a file of the user, and not of an installed library."""
    return file is not None and os.path.isabs(file) and not file.startswith(_LIBRARIES)


def _is_container(value: Any) -> bool:
    code = type | FunctionType | MethodType | functools.partial | Callable
    return not isinstance(value, _PLAIN | tuple | frozenset | np.generic | np.ndarray | Tensor | nn.Module | code)


def codes(code: CodeType) -> list[CodeType]:
    """The code of a function and of all functions that it defines."""
    return [code, *(inner for const in code.co_consts if isinstance(const, CodeType) for inner in codes(const))]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return None


def without_address(text: str) -> str:
    """A repr without the addresses of objects in memory, which differ between processes."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _name(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    own = isinstance(named, type | FunctionType) and is_own(named)  # the user's modules are named as they are run
    module = getattr(named, "__module__", None) or ""
    module = ".".join(module.split(".")[:2]) if module.startswith("fedcore.") else module  # which file may change
    return named.__qualname__ if own else f"{module}.{named.__qualname__}"
