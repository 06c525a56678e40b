"""What SGLang calls when it loads plug-ins: the entry point `rest_store` of the group `sglang.srt.plugins`."""

from __future__ import annotations

import logging

NAME = "REST_STORE"


def register() -> None:
    """Add the algorithm to SGLang's registry, for `--speculative-algorithm REST_STORE`.

    SGLang calls this in each of its processes, whatever algorithm is asked for, and logs what a plug-in raises without
    ending. So what is wrong with the settings is raised when the algorithm is chosen.
    """
    try:
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        from rest_store.engines.sglang.algorithm import RestStoreAlgorithm, worker_class

        SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=RestStoreAlgorithm)(worker_class)
    except (ImportError, AttributeError, TypeError) as error:
        log = logging.getLogger(__name__)
        log.error("rest-store: this SGLang has no registry that %s fits (written for 0.5.23): %s", NAME, error)
