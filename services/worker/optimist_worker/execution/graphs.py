"""Steps captured as CUDA graphs: one launch in place of some hundreds."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch

logger = logging.getLogger(__name__)

MOST_GRAPHS = 64
"""Graphs that are kept; the one that was not used for longest makes room."""
MOST_TOKENS = 512
"""Passes with more tokens take so long that launches do not matter."""


@dataclass(slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: torch.Tensor
    outputs: torch.Tensor


@dataclass(slots=True)
class _Uncapturable:
    """Stands for what no graph can hold."""


class GraphCache:
    """Captures what is run for the second time with the same sizes.

    The first time warms up: kernels are compiled, libraries take their workspaces. All graphs
    share one pool of memory, which is right because they run one after the other. What cannot be
    captured, such as a model that waits for its own results, runs as it is.
    """

    def __init__(self) -> None:
        self._graphs: OrderedDict[Hashable, _Captured | _Uncapturable | None] = OrderedDict()
        self._pool = torch.cuda.graph_pool_handle()

    def run(
        self,
        key: Hashable,
        inputs: torch.Tensor,
        function: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Returns `function(inputs)`; valid until anything else is run.

        Args:
            key: All that the function's operations and their sizes depend on.
            inputs: On the device, always of the same shape for a key.
            function: Waits for nothing, and makes no tensor from the host's memory.
        """
        if key not in self._graphs:
            self._graphs[key] = None
            if len(self._graphs) > MOST_GRAPHS:
                self._graphs.popitem(last=False)
            return function(inputs)
        self._graphs.move_to_end(key)
        captured = self._graphs[key]
        if captured is None:
            captured = self._graphs[key] = self._capture(inputs, function)
        if isinstance(captured, _Uncapturable):
            return function(inputs)
        captured.inputs.copy_(inputs, non_blocking=True)
        captured.graph.replay()
        return captured.outputs

    def _capture(
        self, inputs: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]
    ) -> _Captured | _Uncapturable:
        static = inputs.clone()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            # A capture that fails leaves its own stream behind as the current one.
            with (
                torch.cuda.stream(torch.cuda.current_stream()),
                torch.cuda.graph(graph, pool=self._pool),
            ):
                outputs = function(static)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:300]
            logger.warning("a step runs without a CUDA graph: %s", reason)
            # PyTorch takes a pool whose capture has failed to be in use.
            self._pool = torch.cuda.graph_pool_handle()
            return _Uncapturable()
        return _Captured(graph, static, outputs)
