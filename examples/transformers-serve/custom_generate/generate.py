"""Drafts for every generation of the model in this directory.

The file stands there as `custom_generate/generate.py`.

transformers calls `generate` instead of the model's own where code of the directory is trusted. The
datastores are named by the variable REST_STORE_DATASTORES: directories, and addresses of services,
separated by spaces.
"""

import functools
import os
from copy import copy
from pathlib import Path

from transformers import StopStringCriteria

import rest_store


def generate(
    inputs=None,
    *,
    model,
    tokenizer=None,
    generation_config=None,
    stop_strings=None,
    stopping_criteria=None,
    streamer=None,
    **arguments,
):
    """Generate as `model.generate` does, with drafts."""
    if generation_config is not None and generation_config.stop_strings:
        stop_strings = stop_strings or generation_config.stop_strings
        generation_config = copy(generation_config)
        generation_config.stop_strings = None
    if stop_strings:
        stopping_criteria = [
            *(stopping_criteria or []),
            StopStringCriteria(tokenizer, stop_strings),
        ]
    return type(model).generate(
        model,
        inputs,
        generation_config=generation_config,
        stopping_criteria=stopping_criteria,
        custom_generate=rest_store.generate,
        sources=sources(),
        stream_to=streamer,
        **arguments,
    )


@functools.cache
def sources():
    """Return the sources, opened once for each process."""
    places = os.environ.get("REST_STORE_DATASTORES", "").split()
    return [*map(opened, places), rest_store.PromptLookup(), rest_store.RecycledLogits()]


def opened(place):
    """Return the datastore in a directory, or a client of the service at an address."""
    return (
        rest_store.Datastore.open(place)
        if Path(place).is_dir()
        else rest_store.DatastoreClient(place)
    )
