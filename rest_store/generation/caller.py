"""What `model.generate` was given and does not pass on to a callable `custom_generate`."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from transformers import GenerationMixin


class Withheld(NamedTuple):
    """Arguments of `model.generate`.

    Attributes:
        streamer: has already been given the prompt.
        assistant_model: of assisted generation.
    """

    streamer: Any = None
    assistant_model: Any = None


def withheld_arguments(model: Any) -> Withheld:
    """Return what the `model.generate` that is running on this thread keeps to itself; nothing if none is.

    transformers 5 gives a callable `custom_generate` neither of these arguments, so they are read where they were
    passed: in the frame of `generate`. Without them, a consumer of the streamer would wait for ever.
    """
    body = inspect.unwrap(GenerationMixin.generate).__code__
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not body:
        frame = frame.f_back
    if frame is None:
        return Withheld()
    arguments = inspect.getargvalues(frame).locals
    if arguments.get("self") is not model or not callable(arguments.get("custom_generate")):
        return Withheld()
    return Withheld(arguments.get("streamer"), arguments.get("assistant_model"))
