"""The code of a result: a hash of all source that can change the result, in whichever module this source is.

The hash covers the source files of all modules that a computation imports, directly or indirectly.  It is taken over
their top-level statements in sorted order.  Comments, docstrings, layout, annotations of arguments, the texts of errors
and warnings, imports, `__all__` and the names of modules do not count, so that a stored result stays valid when a
definition moves to another module.  An imported name counts by the text of its definition.

The sources are read once, at the first use: editing a file while a batch runs does not change the hashes of the batch.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from . import archives
from .identity import short

CATALOGUES = {"fedcore.algorithms"}  # modules that list names: a new entry changes no older result
WITHOUT_RESULTS = {  # modules that show code, show progress, or find code
    "fedcore.support.moved", "fedcore.algorithms.listing", "fedcore.support.progress", "fedcore.storage.sources",
}  # fmt: skip
LEFT_OUT = CATALOGUES | WITHOUT_RESULTS


# --- one source text ----------------------------------------------------------------------------------------------


@cache
def _tree(source: str) -> ast.Module:
    return ast.parse(source)


class Statement(NamedTuple):
    """A top-level statement: the names it binds, its `normalised` text, and the names that it uses: (name, "") and
    (name, attribute)."""

    binds: frozenset[str]
    text: str
    uses: frozenset[tuple[str, str]]


@cache
def statements(source: str, modules: frozenset[str] = frozenset()) -> tuple[Statement, ...]:
    """The top-level statements that compute: no docstring, no import, no `__all__`.  modules: as for `normalised`."""
    found = []
    for node in _tree(source).body:
        if not _computes_nothing(node) and "__all__" not in (binds := _bound(node)):
            uses: set[tuple[str, str]] = set()
            found.append(Statement(frozenset(binds), normalised(node, modules, uses), frozenset(uses)))
    return tuple(found)


def normalised(node: Any, modules: Collection[str], uses: set[tuple[str, str]], told: bool = False) -> str:
    """A syntax tree in one line, the same for every layout and, so far as we know, every Python.

    modules: names that refer to modules here.  These names and the texts of errors and warnings (`told`) are left out.
    uses: a set to which the names that the text uses are added, as in `Statement`.
    """
    if isinstance(node, list):
        return "[" + ",".join(normalised(n, modules, uses, told) for n in node if not _computes_nothing(n)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    told = told or _tells(node)
    if told and _is_text(node):
        return "text"
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        uses.add((node.value.id, node.attr))
    if isinstance(node, ast.Name):
        uses.add((node.id, ""))
        if node.id in modules:
            return "module"
    fields = [f"{name}={normalised(value, modules, uses, told)}" for name, value in _fields(node)]
    return f"{type(node).__name__}({','.join(fields)})"


def _fields(node: ast.AST) -> Iterator[tuple[str, Any]]:
    for name, value in ast.iter_fields(node):
        hint = name == "returns" or (name == "annotation" and isinstance(node, ast.arg))
        if value not in (None, []) and not hint:  # a newer Python has fields that are empty for older syntax
            yield name, value


def _tells(node: ast.AST) -> bool:
    """Whether a node raises an error or gives a warning."""
    warns = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "warn"
    return warns or isinstance(node, ast.Raise)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _computes_nothing(node: Any) -> bool:
    """Whether a node is a docstring, an import, or a block that only type checkers read."""
    if isinstance(node, ast.Expr):
        return _is_text(node.value)
    return isinstance(node, ast.Import | ast.ImportFrom) or _for_types_only(node)


def _for_types_only(node: Any) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement binds in its module."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    inner = [n for name in ("body", "orelse", "finalbody", "handlers") for n in getattr(node, name, [])]
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return names.union(*map(_bound, inner))


@cache
def imports(source: str, package: str) -> tuple[tuple[str, str, str], ...]:
    """(module, name there, name here) of all that a module in `package` imports, at its top or inside of a function.

    For `import fedcore as fc` these are the names that the module uses: `fc.models.mlp` is `models` of `fedcore` and
    `mlp` of `fedcore.models`.  A module of another package is listed as a whole, with an empty name.
    """
    out, tree = [], _tree(source)
    for node in _running(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top, _, _ = alias.name.partition(".")
                if top in ("fedcore", "fedbook"):
                    out += [(base, name, "") for base, name in _used(tree, alias)]
                else:
                    out.append((alias.name, "", alias.asname or top))
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            out += [(base, alias.name, alias.asname or alias.name) for alias in node.names]
    return tuple(out)


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes except those that only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if not _for_types_only(node):
            yield node
            yield from _running(node)


def _used(tree: ast.AST, alias: ast.alias) -> list[tuple[str, str]]:
    """(module, name) of all attributes, at any depth, that are used of an imported module of the package."""
    top = alias.name.partition(".")[0]
    here, module = (alias.asname, alias.name) if alias.asname else (top, top)
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, *names = ast.unparse(node).split(".")
            if first == here and all(name.isidentifier() for name in names):
                out.append((".".join([module, *names[:-1]]), names[-1]))
    return out


# --- a package ----------------------------------------------------------------------------------------------------


class Sources:
    """The source of packages: `texts` by the name of the module; `packages` are the modules that are an `__init__`.

    left_out: modules that cannot change a result, because they plot, print or store it; "name.*" for all of a package.
    """

    def __init__(
        self, texts: Mapping[str, str], packages: Collection[str], left_out: Collection[str] = LEFT_OUT
    ) -> None:
        self.texts, self.packages, self.left_out = texts, packages, left_out
        self._digests: dict[tuple[str, ...], str] = {}
        self._meanings: dict[tuple[str, str], str] = {}

    @classmethod
    def of(cls, files: Mapping[str, Path], left_out: Collection[str] = LEFT_OUT) -> Sources:
        """The source in these files, as `read` finds them."""
        texts = {name: file.read_text(encoding="utf-8") for name, file in files.items()}
        return cls(texts, {name for name, file in files.items() if file.name == "__init__.py"}, left_out)

    def digest(self, roots: Iterable[str]) -> str:
        """A hash of all source that the modules `roots` import and that can change a result."""
        roots = tuple(roots)
        if roots not in self._digests:
            items = {item for module in self.reached(roots) for item in self.items(module)}
            self._digests[roots] = short("\n".join(sorted(items)))
        return self._digests[roots]

    def items(self, module: str) -> Iterator[str]:
        """The statements of a module as `digest` hashes them, each with the meaning of its imported names: the text of
        the definition for names of these packages, module and name for all others."""
        imported, modules = self._imported(module)
        for statement in self._statements(module):
            used = {(name, *imported[name]) for name, _ in statement.uses if name in imported.keys() - modules.keys()}
            used |= {(name, modules[base], name) for base, name in statement.uses if name and base in modules}
            yield statement.text + "".join(f" {name}={self._meant(base, there)}" for name, base, there in sorted(used))

    def _imported(self, module: str) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
        """What the imported names of a module refer to: (module, name there) of all, and the names that are modules of
        these packages."""
        found = self.imports_of(module)
        known = {here: (base, there) for base, there, here in found if here}
        ours = {here: f"{base}.{there}" for here, (base, there) in known.items() if f"{base}.{there}" in self.texts}
        return known, ours

    def _statements(self, module: str) -> tuple[Statement, ...]:
        return statements(self._text(module), frozenset(self._imported(module)[1]))

    def _meant(self, base: str, name: str) -> str:
        """A hash of the definition of an imported name, 8 digits; the hash of "" if the definition does not count."""
        if (base, name) not in self._meanings:
            home = self._home(base, name)
            counts = home and not self.leaves_out(home[0])
            texts = [s.text for s in self._statements(home[0]) if home[1] in s.binds] if counts else []
            self._meanings[base, name] = short("".join(texts) if home else f"{base}.{name}")[:8]
        return self._meanings[base, name]

    def reached(self, roots: Iterable[str]) -> list[str]:
        """The modules that `digest` covers, sorted.  A root outside of the packages is the path of its file."""
        found: set[str] = set()
        todo = list(roots)
        while todo:
            module = todo.pop()
            if module not in found and not self.leaves_out(module):
                found.add(module)
                for base, name, _ in self.imports_of(module):
                    todo += [home[0]] if (home := self._home(base, name)) else []
                    if module not in self.texts:  # a file of the user may import files in its folder
                        beside = Path(module).parent.joinpath(*base.split(".")).with_suffix(".py")
                        todo += [str(beside)] if beside.is_file() else []
        return sorted(found)

    def leaves_out(self, module: str) -> bool:
        """Whether a module cannot change a result."""
        return module in self.left_out or f"{module.rpartition('.')[0]}.*" in self.left_out

    def imports_of(self, module: str) -> tuple[tuple[str, str, str], ...]:
        """`imports` of one of these modules, or of a file of the user."""
        return imports(self._text(module), module if module in self.packages else module.rpartition(".")[0])

    def _text(self, module: str) -> str:
        return self.texts[module] if module in self.texts else readable(module)

    def _home(self, base: str, name: str) -> tuple[str, str] | None:
        """The module that defines what `base` calls `name`, and its name there; None outside of the packages."""
        if f"{base}.{name}" in self.texts:
            return f"{base}.{name}", ""
        if base not in self.texts:
            return None
        if any(name in statement.binds for statement in self._statements(base)):
            return base, name
        for module, there, here in self.imports_of(base):
            if here == name and module != base:
                return self._home(module, there)
            if here == "*" and (found := self._home(module, name)) and found[0] != module:
                return found
        return base, name


def readable(file: str | os.PathLike) -> str:
    """The text of a Python file; raises ValueError if it cannot be read, or with the line of a syntax error."""
    try:
        archives.regular(file)  # a pipe or a device may have no end
        text = Path(file).read_text(encoding="utf-8")
        ast.parse(text, str(file))
    except SyntaxError as e:
        raise ValueError(f"{file}, line {e.lineno}: {e.msg}; correct the file") from e
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or e
        raise ValueError(
            f"{file} cannot be read ({why}); give a path relative to the definitions file, or an absolute one"
        ) from e
    return text


def read(*packages: str) -> dict[str, Path]:
    """The files of all modules of these packages, by module; a package that is not installed has none."""
    files = {}
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        root = Path(spec.origin).resolve().parent
        for file in sorted(root.rglob("*.py")):
            files[".".join((name, *file.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")] = file
    return files


# --- the simulator itself -----------------------------------------------------------------------------------------


@cache
def simulator() -> Sources:
    """The source of `fedcore`."""
    return Sources.of(read("fedcore"))


@cache
def library() -> str:
    """The hash of the source that can change a run of any method."""
    return simulator().digest(library_roots())


def library_roots() -> tuple[str, ...]:
    """The modules of a run and of every method."""
    return ("fedcore.run", *sorted(name for name in simulator().texts if name.startswith("fedcore.algorithms.")))


def of_run(modules: Iterable[str]) -> str:
    """The hash of the source that can change a run of methods and probes from these modules.  A module of the user may
    use any method, so that for it the hash is `library()`."""
    ours = set(modules) - set(sys.builtin_module_names) - {"abc"}
    known = ours <= simulator().texts.keys()
    return simulator().digest(("fedcore.run", *sorted(ours))) if known else library()
