"""Temporarily replaces the code of a module's functions with a past bug or a mutation."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType


@contextmanager
def rewrite_functions(module: ModuleType, source: str) -> Iterator[None]:
    """Inside the `with` block, run the functions of `module` with the code that they have in `source`."""
    codes = functions(source, inspect.getfile(module))
    gc.unfreeze()  # `get_objects` omits frozen objects, such as those in Spark's workers
    before = [
        (function, function.__code__)
        for function in gc.get_objects()
        if isinstance(function, FunctionType)
        and function.__module__ == module.__name__
        and _is_replaceable(function, codes.get(function.__qualname__))
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


def _is_replaceable(function: FunctionType, code: CodeType | None) -> bool:
    return code is not None and function.__code__.co_freevars == code.co_freevars


def _functions(code: CodeType, prefix: str = "") -> Iterator[tuple[str, CodeType]]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and not inner.co_name.startswith("<"):
            name, is_function = prefix + inner.co_name, bool(inner.co_flags & inspect.CO_NEWLOCALS)
            if is_function:
                yield name, inner
            yield from _functions(inner, f"{name}.<locals>." if is_function else f"{name}.")
