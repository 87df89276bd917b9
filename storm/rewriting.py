"""Replaces the code of a module's functions temporarily, by a past fault or a mutation."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType


@contextmanager
def rewritten(module: ModuleType, source: str) -> Iterator[None]:
    """Run the functions of `module` with their code in `source` inside the block."""
    codes = functions(source, inspect.getfile(module))
    gc.unfreeze()  # frozen functions, as in Spark's workers, are not among the objects
    before = [
        (function, function.__code__)
        for function in gc.get_objects()
        if isinstance(function, FunctionType)
        and function.__module__ == module.__name__
        and _fits(function, codes.get(function.__qualname__))
    ]
    try:
        for function, _ in before:
            function.__code__ = codes[function.__qualname__]
        yield
    finally:
        for function, code in before:
            function.__code__ = code


def functions(source: str, filename: str = "") -> dict[str, CodeType]:
    """The functions that `source` defines, by qualified name."""
    return dict(_functions(compile(source, filename, "exec", dont_inherit=True)))


def _fits(function: FunctionType, code: CodeType | None) -> bool:
    return code is not None and function.__code__.co_freevars == code.co_freevars


def _functions(code: CodeType, prefix: str = "") -> Iterator[tuple[str, CodeType]]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and not inner.co_name.startswith("<"):
            name, is_function = prefix + inner.co_name, bool(inner.co_flags & inspect.CO_NEWLOCALS)
            if is_function:
                yield name, inner
            yield from _functions(inner, f"{name}.<locals>." if is_function else f"{name}.")
