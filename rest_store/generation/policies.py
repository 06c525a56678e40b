"""Drafting policies of a model, with what its generations have learned of the time of its steps."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

from rest_store.drafting.costs import DraftPolicy
from rest_store.generation.prefill import Prompt

_policies: weakref.WeakKeyDictionary[Any, dict[Hashable, DraftPolicy]] = weakref.WeakKeyDictionary()


def policy_of(model: Any, prompt: Prompt) -> DraftPolicy:
    """Return the policy of another generation behind `prompt`, which knows steps of the same conditions.

    Args:
        model: the target model, which is not kept alive.
        prompt: that the model has read.
    """
    context = max(prompt.length, 256).bit_length()  # steps take longer with the context
    is_prepacked = any("forward" in vars(module) for module in model.modules())
    conditions = (prompt.logits.shape[0], context, prompt.logits.device, prompt.logits.dtype, is_prepacked)
    policies = _policies.setdefault(model, {})
    policy = policies.get(conditions)
    if policy is None:
        slope = 0.04 if prompt.logits.device.type == "cpu" else 0.005
        policy = policies[conditions] = DraftPolicy(slope)
    policy.begin()
    return policy
