"""Triton's interpreter without work whose outcome nobody sees, in less than half the time.

It looks for overflow in each sum and product of integers, and then asserts nothing: that needs a debug build.
Types, shapes and values that are the same each time are made once.
"""

from __future__ import annotations

import math
import os
from importlib.util import find_spec
from typing import Any


def install() -> None:
    """Change the interpreter, where TRITON_INTERPRET=1 chose it."""
    if os.environ.get("TRITON_INTERPRET") != "1" or not find_spec("triton"):
        return
    from triton.language import core, semantic
    from triton.runtime import interpreter

    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(
        sanitize_overflow=False
    )
    numpy_type, new_block = interpreter._get_np_dtype, core.block_type.__init__
    new_broadcast = semantic.TritonSemantic.broadcast_impl_value
    numpy_types: dict[str, Any] = {}
    blocks: dict[tuple[Any, ...], dict[str, Any]] = {}
    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def numpy_type_of(kind: Any) -> Any:
        scalar = kind.scalar
        if scalar.is_ptr():
            return numpy_type(scalar)
        if scalar.name not in numpy_types:
            numpy_types[scalar.name] = numpy_type(scalar)
        return numpy_types[scalar.name]

    def block(self: Any, element: Any, shape: Any) -> None:
        self.sizes = tuple([getattr(size, "value", size) for size in shape])
        if element.is_ptr():  # whose names do not tell all of them apart
            new_block(self, element, shape)
            return
        key = (element.name, *self.sizes)
        if key not in blocks:
            new_block(self, element, shape)
            blocks[key] = dict(vars(self))
        vars(self).update(blocks[key])

    def tensor(self: Any, handle: Any, kind: Any) -> None:
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        sizes = (*kind.shape,) if kind.is_block() else ()
        if sizes not in shapes:
            whole = core.tuple([core.constexpr(size) for size in sizes])
            shapes[sizes] = whole, core.constexpr(math.prod(sizes))
        self.shape, self.numel = shapes[sizes]

    def broadcast(self: Any, a: Any, b: Any) -> tuple[Any, Any]:
        alike = getattr(a.type, "sizes", None) == getattr(b.type, "sizes", None)
        return (a, b) if alike else new_broadcast(self, a, b)

    interpreter._get_np_dtype = numpy_type_of
    semantic.TritonSemantic.broadcast_impl_value = broadcast
    core.block_type.__init__, core.tensor.__init__ = block, tensor
