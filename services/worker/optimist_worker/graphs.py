"""Steps captured as CUDA graphs: one launch in place of some hundreds."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch

MOST_GRAPHS = 64
"""Graphs that are kept; the one that was not used for longest makes room."""
MOST_TOKENS = 512
"""Passes with more tokens take so long that launches do not matter."""


@dataclass(slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: torch.Tensor
    outputs: torch.Tensor


class GraphCache:
    """Captures what is run for the second time with the same sizes.

    The first time warms up: kernels are compiled, libraries take their workspaces. All graphs
    share one pool of memory, which is right because they run one after the other.
    """

    def __init__(self) -> None:
        self._graphs: OrderedDict[Hashable, _Captured | None] = OrderedDict()
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
        captured.inputs.copy_(inputs, non_blocking=True)
        captured.graph.replay()
        return captured.outputs

    def _capture(
        self, inputs: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]
    ) -> _Captured:
        static = inputs.clone()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = function(static)
        return _Captured(graph, static, outputs)
