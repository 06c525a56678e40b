"""What `model.generate` was given and does not pass on to a callable `custom_generate`."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple


class Withheld(NamedTuple):
    """Arguments that `model.generate` keeps to itself; None where they were not passed.

    Attributes:
        streamer: `generate` has already given it the prompt.
        assistant_model: the smaller model of assisted generation.
    """

    streamer: Any = None
    assistant_model: Any = None


def withheld_arguments(model: Any) -> Withheld:
    """Return what the running `model.generate` of this thread keeps to itself; without one, nothing.

    transformers 5 gives a callable `custom_generate` neither of these arguments, so they are read where they were
    passed: in the frame of `generate`. Without them, a consumer of the streamer would wait for ever.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "generate":
            arguments = frame.f_locals
            if arguments.get("self") is model and "custom_generate" in arguments:  # not a method around it
                if not callable(arguments["custom_generate"]):
                    break
                return Withheld(arguments.get("streamer"), arguments.get("assistant_model"))
        frame = frame.f_back
    return Withheld()
