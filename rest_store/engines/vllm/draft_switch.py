"""Requests without drafts: vLLM's scheduler gives them no draft tokens to verify.

The scheduler decides how many draft tokens a row verifies, before the worker has any. So a row
without them is made here, in the process of the scheduler.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rest_store.engines.request import wants_drafts
from rest_store.engines.vllm.seam import SWITCH_PARTS
from rest_store.engines.vllm.settings import has_settings
from rest_store.seam import differences


def install_switch(warn: Callable[[str], object]) -> None:
    """Wrap the scheduler's step.

    Args:
        warn: called with a line if this vLLM differs from the table, and requests cannot switch.
    """
    if problems := differences(SWITCH_PARTS):
        warn(f"rest-store: requests cannot switch drafts off in this vLLM: {problems[0]}")
        return
    from vllm.v1.core.sched.scheduler import Scheduler

    if not hasattr(Scheduler.schedule, "__wrapped__"):
        Scheduler.schedule = _switching(Scheduler.schedule, warn)


def _switching(native: Callable[..., Any], warn: Callable[[str], object]) -> Callable[..., Any]:
    @functools.wraps(native)
    def schedule(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            if has_settings(self.vllm_config):
                _switch_off(self.running)
        except Exception as error:
            warn(f"rest-store: a request could not switch drafts off: {error}")
        return native(self, *arguments, **options)

    return schedule


def _switch_off(requests: list[Any]) -> None:
    """Take the draft tokens from requests that want none."""
    for request in requests:
        sampling = request.sampling_params
        if not request.spec_token_ids or sampling is None or not sampling.extra_args:
            continue
        if not wants_drafts(sampling.extra_args, lambda reason: None):
            request.spec_token_ids = []
