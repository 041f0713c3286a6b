"""Steps captured as CUDA graphs: which ones, when, and what runs in them."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from operator import attrgetter

import torch

from optimist_common.errors import one_line
from optimist_worker.core.batch.host_view import StepBounds
from optimist_worker.core.batch.step_sizes import holds

logger = logging.getLogger(__name__)

Function = Callable[[torch.Tensor], torch.Tensor]

MOST_GRAPHS = 160
"""Graphs that are kept; the one that was not used for longest makes room."""
MOST_TOKENS = 2048
"""Of a pass that is captured. The memory of the largest one is kept, see `footprint`."""
_MOST_WIDER = 16
"""Times that a size runs in a wider one before it is captured itself."""
_MOST_LONGER = 64, 4 / 3
"""Tokens of a wider one: so many cost as much as one, and so many times the tokens cost less than
what is saved."""
_RETRY = 256
"""Steps of a size after a failed capture until the next one."""


class GraphCache:
    """Captures a size when it first comes, after a run that warms up, and replays it from then on.

    A size that is not captured runs in the least of the captured ones that hold it, a few times:
    one that comes rarely is not worth a capture. Else it runs as it is, like a step that cannot be
    captured: one whose model waits for its own results.
    """

    def __init__(self, capture: Callable[[torch.Tensor, Function], Function]) -> None:
        """`capture` returns what replays a function, or raises any error."""
        self._capture = capture
        self._graphs: OrderedDict[StepBounds, Function] = OrderedDict()
        self._met: dict[StepBounds, int] = {}
        """How often sizes that are not captured came; below 0 if their capture has failed."""

    def fit(self, size: StepBounds) -> StepBounds:
        """Returns the size that a step of a size is to run in, its own or a captured one."""
        if size in self._graphs:
            return size
        met = self._met[size] = self._met.get(size, 0) + 1
        if met > _MOST_WIDER:
            return size
        least, factor = _MOST_LONGER
        most = max(least, int(size.num_tokens * factor))
        wider = [each for each in self._graphs if each.num_tokens <= most and holds(each, size)]
        order = attrgetter("num_tokens", "num_logits", "num_rows")
        return min(wider, key=order, default=size)

    def run(self, size: StepBounds, inputs: torch.Tensor, function: Function) -> torch.Tensor:
        """Returns `function(inputs)`; valid until anything else is run.

        The function's operations, their sizes and the shape of the inputs depend on nothing but the
        size. It waits for nothing, and makes no tensor from the host's memory.
        """
        if (replay := self._graphs.get(size)) is not None:
            self._graphs.move_to_end(size)
            return replay(inputs)
        # Kernels are compiled, and libraries take their workspaces.
        outputs = function(inputs)
        if self._met.get(size, 0) >= 0:
            self._add(size, inputs, function)
        return outputs

    def _add(self, size: StepBounds, inputs: torch.Tensor, function: Function) -> None:
        try:
            self._graphs[size] = self._capture(inputs, function)
        except Exception as error:
            # Whatever it is, it comes again where the step is run as it is. The end of a capture
            # that something has ended says less.
            cause = error.__context__ or error
            logger.warning("a step runs without a CUDA graph: %s", one_line(cause))
            self._met[size] = -_RETRY
            return
        self._met.pop(size, None)
        if len(self._graphs) > MOST_GRAPHS:
            self._graphs.popitem(last=False)


class CudaCapture:
    """Captures functions as graphs that share one pool of memory, since they run in turn."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, inputs: torch.Tensor, function: Function) -> Function:
        """Returns what replays a function; raises what PyTorch raises.

        Nothing runs, so nothing is waited for. The thread that waits for the ends of steps may ask
        for those of earlier ones meanwhile, which would else end the capture (PyTorch's pull
        request 104555).
        """
        static, graph = inputs.clone(), torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    outputs = function(static)
                finally:
                    graph.capture_end()
        except Exception:
            # PyTorch takes a pool whose capture has failed to be in use.
            self._pool = torch.cuda.graph_pool_handle()
            raise

        def replay(inputs: torch.Tensor) -> torch.Tensor:
            static.copy_(inputs, non_blocking=True)
            graph.replay()
            return outputs

        return replay
