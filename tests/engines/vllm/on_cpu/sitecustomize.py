"""This folder on PYTHONPATH gives Python a Triton that interprets kernels without a driver.

vLLM's model runner V2 needs Triton, which has no back end for CPUs. Its interpreter needs none, but
vLLM looks for one by its name. The interpreter of Triton 3.9 takes masks of no other type than
bool, which those of vLLM's kernels are where they are compiled, and its `tl.range` yields Python's
numbers, where compiled kernels have tensors.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any


def interpret_kernels() -> None:
    """Must come before vLLM is imported."""
    os.environ["TRITON_INTERPRET"] = "1"
    from triton import backends
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpreterBuilder

    driver = SimpleNamespace(is_active=lambda: False)
    backends.backends = {**backends.backends, "cpu": SimpleNamespace(driver=driver, compiler=None)}
    load = InterpreterBuilder.create_masked_load
    store = InterpreterBuilder.create_masked_store

    def create_masked_load(self: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        mask.data = mask.data.astype(bool)
        return load(self, pointers, mask, *others)

    def create_masked_store(self: Any, pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        mask.data = mask.data.astype(bool)
        return store(self, pointers, value, mask, *others)

    def patch_lang_core(lang: Any, scope: Any) -> None:
        patch(lang, scope)
        numbers = lang.range
        scope.set_attr(
            lang,
            "range",
            lambda *bounds, **options: map(interpreter._implicit_cvt, numbers(*bounds)),
        )

    patch = interpreter._patch_lang_core
    interpreter._patch_lang_core = patch_lang_core
    InterpreterBuilder.create_masked_load = create_masked_load
    InterpreterBuilder.create_masked_store = create_masked_store


interpret_kernels()
