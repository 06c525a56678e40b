"""Recurrent layers that read draft trees: each node continues the state of its parent.

Mixers of transformers read several tokens at once in chunks. The output at a token then has two
parts: a decayed matrix product with the earlier tokens of the chunk, and a read of the state before
the chunk. In a tree, the earlier tokens of a node are its ancestors. So the same products work with
the mask of a tree in place of a causal mask, and a pass over a tree costs no more than a pass over
a chain of as many tokens. The state at a node is a sum over its ancestors, too. It is computed for
the last accepted node alone.

The mixers themselves stay those of transformers. During a pass over a tree we replace three
functions that they call: the convolution, the gated delta rule (Gated DeltaNet, arXiv 2412.06464,
in its form for chunks) and the scan of Mamba 2 (arXiv 2405.21060, section 6). For the time of the
pass, each module gets a copy of its class's `forward` whose globals hold the replacements. Nothing
here is thread-safe.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers.activations import ACT2FN

from rest_store.datastore.tree import TokenTree
from rest_store.generation.seam import MIXER_PARAMETERS

_EPSILON = 1e-6  # of the normalization of queries and keys


@dataclass(frozen=True)
class PassTree:
    """The trees of a pass, one for each row.

    Node 0 of a row is its last accepted token. The draft tree hangs below it.

    Attributes:
        sees: the mask of attention: `sees[r, i, j]` is true if node j is node i or one of its
            ancestors. bool[rows, width, width].
        lineage: the node itself, its parent, the parent's parent ..., int64[rows, width, length].
            -1 is the last token before the pass, -2 that before it.
    """

    sees: torch.Tensor
    lineage: torch.Tensor

    @classmethod
    def from_trees(
        cls, trees: Sequence[TokenTree], width: int, length: int, device: torch.device
    ) -> PassTree:
        """Return the trees of a pass of `width` tokens a row. Padding continues node 0."""
        parents = np.zeros((len(trees), width), dtype=np.int64)
        parents[:, 0] = -1
        sees = np.zeros((len(trees), width, width), dtype=np.bool_)
        sees[:, np.arange(width), np.arange(width)] = True
        sees[:, :, 0] = True
        for row, tree in enumerate(trees):
            if len(tree):
                nodes = slice(1, 1 + len(tree))
                parents[row, nodes] = tree.parents + 1
                sees[row, nodes, nodes] = tree.mask()
        lineage = np.empty((len(trees), width, length), dtype=np.int64)
        lineage[:, :, 0] = np.arange(width)
        for step in range(1, length):
            before = lineage[:, :, step - 1]
            above = np.take_along_axis(parents, before.clip(min=0), axis=1)
            # Above node 0 come the tokens before the pass: -1, -2, ...
            lineage[:, :, step] = np.where(before >= 0, above, before - 1)
        return cls(torch.from_numpy(sees).to(device), torch.from_numpy(lineage).to(device))

    def at(self, ends: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `sees` and `lineage` of one node of each row, [rows, ...]."""
        rows = torch.arange(ends.shape[0], device=ends.device)
        return self.sees[rows, ends], self.lineage[rows, ends]


@dataclass(frozen=True)
class StateParts:
    """The parts of which the state at any node of a pass is computed.

    Attributes:
        keys: [rows, heads, width, size].
        values: the value that each node adds for its key, [rows, heads, width, other size].
        log_decay: at each node, the logarithm of the factor on the state before the pass,
            [rows, heads, width].
        is_transposed: whether states are [rows, heads, values, keys], not [.., keys, values].
    """

    keys: torch.Tensor
    values: torch.Tensor
    log_decay: torch.Tensor
    is_transposed: bool

    def state_at(self, state: torch.Tensor, sees: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Return the state after a node of each row.

        Args:
            state: before the pass.
            sees: the row of the mask of that node, bool[rows, width].
            ends: the node, int64[rows].
        """
        heads = self.log_decay.shape[1]
        log_decay_at_end = self.log_decay.gather(2, ends[:, None, None].expand(-1, heads, 1))
        log_weights = (log_decay_at_end - self.log_decay).masked_fill(~sees[:, None], float("-inf"))
        keys = self.keys * log_weights.exp()[..., None]
        added = self.values.mT @ keys if self.is_transposed else keys.mT @ self.values
        return state * log_decay_at_end.exp()[..., None] + added


class TreeMixers:
    """The recurrent mixers of a model, for passes over trees.

    Args:
        mixers: modules, and for each the `forward` of its class.
    """

    def __init__(self, mixers: Mapping[Any, Callable[..., Any]]) -> None:
        self._tree: PassTree | None = None
        ours: dict[str, Callable[..., Any]] = {
            "causal_conv1d_fn": self._convolution,
            "torch_chunk_gated_delta_rule": self._delta_rule,
            "mamba2_chunk_scan": self._scan,
        }
        self._forwards = [
            (mixer, types.MethodType(_with_names(forward, ours), mixer))
            for mixer, forward in mixers.items()
        ]

    @classmethod
    def from_model(cls, model: Any, layers: set[int]) -> TreeMixers | None:
        """Return the mixers of these layers; None: not all of them can read trees.

        A wrapped or offloaded mixer cannot.
        """
        mixers = {}
        numbers = []
        for module in model.modules():
            forward = inspect.unwrap(type(module).forward)
            if not _reads_trees(forward):
                continue
            is_changed = "forward" in vars(module)
            if is_changed or any(hasattr(part, "_hf_hook") for part in module.modules()):
                return None
            mixers[module] = forward
            numbers.append(getattr(module, "layer_idx", None))
        # As texts, since `layer_idx` may be None.
        is_complete = sorted(map(str, numbers)) == sorted(map(str, layers))
        return cls(mixers) if is_complete else None

    @contextmanager
    def reading(self, tree: PassTree) -> Iterator[None]:
        """Have the mixers read `tree` in a pass over as many tokens."""
        self._tree = tree
        try:
            for mixer, forward in self._forwards:
                mixer.forward = forward
            yield
        finally:
            self._tree = None
            for mixer, _ in self._forwards:
                vars(mixer).pop("forward", None)

    @property
    def _pass_tree(self) -> PassTree:
        assert self._tree is not None
        return self._tree

    def _convolution(
        self,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Take the place of `causal_conv1d_fn`.

        Args:
            hidden_states: inputs before the pass and those of the pass, [rows, channels, length].
            weight: [channels, kernel].
            bias: [channels].
            activation: the function after it, by name.
            kwargs: arguments for packed texts.

        Returns:
            [rows, channels, width].
        """
        lineage = self._pass_tree.lineage[:, :, : weight.shape[-1]].flip(-1)
        rows, width, kernel = lineage.shape
        channels = hidden_states.shape[1]
        columns = (hidden_states.shape[-1] - width + lineage).reshape(rows, 1, width * kernel)
        windows = hidden_states.gather(2, columns.expand(-1, channels, -1)).to(weight.dtype)
        output = (windows.view(rows, channels, width, kernel) * weight[:, None]).sum(-1)
        if bias is not None:
            output = output + bias[:, None]
        if activation is not None:
            output = ACT2FN[activation](output)
        return output.to(hidden_states.dtype)

    def _delta_rule(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        initial_state: torch.Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, Any]:
        """Take the place of `torch_chunk_gated_delta_rule`.

        Arguments are as there; instead of a state this returns `StateParts`.
        """
        assert initial_state is not None
        heads = value.shape[2]
        if query.shape[2] != heads:
            query = query.repeat_interleave(heads // query.shape[2], dim=2)
        if key.shape[2] != heads:
            key = key.repeat_interleave(heads // key.shape[2], dim=2)
        query, key, values, rate, log_step = (
            part.transpose(1, 2).float() for part in (query, key, value, beta, g)
        )
        if use_qk_l2norm_in_kernel:
            query, key = (
                part * torch.rsqrt((part * part).sum(-1, keepdim=True) + _EPSILON)
                for part in (query, key)
            )
        query = query * query.shape[-1] ** -0.5
        log_decay, between = self._decays(log_step)
        decay = log_decay.exp()[..., None]
        state = initial_state.float()
        writes = key * rate[..., None]
        # The delta rule: a node writes its value less the value that the state already returns for
        # its key. That state includes the writes of its ancestors: a triangular system.
        targets = values * rate[..., None] - (writes * decay) @ state
        system = (writes @ key.mT) * between
        new = torch.linalg.solve_triangular(system, targets, upper=False, unitriangular=True)
        output = (query * decay) @ state + ((query @ key.mT) * between) @ new
        parts = StateParts(key, new, log_decay, is_transposed=False)
        return output.transpose(1, 2).to(value.dtype).contiguous(), parts

    def _scan(
        self,
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,  # noqa: N803 - the name that mixers pass it by
        B: torch.Tensor,  # noqa: N803
        C: torch.Tensor,  # noqa: N803
        chunk_size: int = 0,
        D: torch.Tensor | None = None,  # noqa: N803
        dt_bias: torch.Tensor | None = None,
        initial_states: torch.Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        return_final_states: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, Any]:
        """Take the place of `mamba2_chunk_scan`.

        Arguments are as there; instead of a state this returns `StateParts`.
        """
        assert initial_states is not None
        heads = hidden_states.shape[2]
        steps = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
        steps = functional.softplus(steps) if dt_softplus else steps
        steps = steps.clamp(min=dt_limit[0], max=dt_limit[1]).float().transpose(1, 2)
        inputs = hidden_states.float().transpose(1, 2)
        keys, queries = (
            part.float().repeat_interleave(heads // part.shape[2], dim=2).transpose(1, 2)
            for part in (B, C)
        )
        log_decay, between = self._decays(A.float()[:, None] * steps)
        decay = log_decay.exp()[..., None]
        values = inputs * steps[..., None]
        state = initial_states.float()
        output = ((queries @ keys.mT) * between) @ values
        output = output + (queries * decay) @ state.mT
        if D is not None:
            output = output + D.float().reshape(heads, 1, -1) * inputs
        parts = StateParts(keys, values, log_decay, is_transposed=True)
        return output.transpose(1, 2).contiguous(), parts

    def _decays(self, log_steps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the decays from the start of the pass, and from ancestors.

        Args:
            log_steps: the logarithm of the decay at each node, [rows, heads, width].

        Returns:
            The logarithm of the decay from the start of the pass to each node, [rows, heads,
            width]; and the factor of the decay from each ancestor to each node, [rows, heads,
            width, width], 0 for nodes that are no ancestors.
        """
        sees = self._pass_tree.sees[:, None]
        log_decay = (sees.to(log_steps.dtype) @ log_steps[..., None])[..., 0]
        differences = log_decay[..., None] - log_decay[..., None, :]
        between = differences.masked_fill(~sees, float("-inf")).exp()
        return log_decay, between


def _reads_trees(forward: Callable[..., Any]) -> bool:
    """Return whether a `forward` calls only functions that we replace, with known parameters."""
    code = getattr(forward, "__code__", None)
    if code is None or "causal_conv1d_fn" not in code.co_names:
        return False
    for name in MIXER_PARAMETERS.keys() & set(code.co_names):
        theirs = forward.__globals__.get(name)
        if (
            theirs is None
            or not MIXER_PARAMETERS[name] <= inspect.signature(theirs).parameters.keys()
        ):
            return False
    # A forward that calls another function over chunks cannot read trees.
    rules = {name for name in code.co_names if "chunk" in name and name in forward.__globals__}
    return rules <= MIXER_PARAMETERS.keys()


def _with_names(
    forward: Callable[..., Any], names: Mapping[str, Callable[..., Any]]
) -> Callable[..., Any]:
    """Return a function that is `forward`, but calls others by these names."""
    function = types.FunctionType(
        forward.__code__,
        {**forward.__globals__, **names},
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    function.__kwdefaults__ = forward.__kwdefaults__
    return function
