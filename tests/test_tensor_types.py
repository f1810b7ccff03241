"""New tensors, empty, of constants or at random, do not have the type that ``torch.set_default_dtype`` sets."""

from __future__ import annotations

import ast
from pathlib import Path

import aleator

PACKAGE = Path(aleator.__file__).parent
MAKE = {"empty", "zeros", "ones", "rand", "randn", "linspace", "eye"}


def test_every_new_tensor_says_its_type() -> None:
    silent, spoken = [], 0
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr not in MAKE or ast.unparse(node.func.value) != "torch":
                continue
            spoken += 1
            if "dtype" not in {each.arg for each in node.keywords}:
                silent.append(f"{path.relative_to(PACKAGE)}:{node.lineno} {ast.unparse(node)}")
    assert not silent
    assert spoken > 50
