"""What the device can do at most: copy, read and multiply."""

import torch

from gpu_measure.bench import Bench
from gpu_measure.shape import Ceilings


def measure_ceilings(bench: Bench) -> None:
    """Copies, reads and multiplies as much as fits easily."""
    size, side = (2**22, 256) if bench.is_tiny else (2**32, 8192)
    if bench.is_cuda:
        size = min(size, torch.cuda.mem_get_info()[0] // 2**22 * 2**20)
    source = torch.randint(0, 100, (size // 2,), dtype=torch.int16, device=bench.device)
    target = torch.empty_like(source)
    copy = bench.seconds(lambda: target.copy_(source), 6)
    values = source.view(torch.int32).view(torch.float32)
    read = bench.seconds(values.sum, 6)
    a, b = (torch.randn(side, side, dtype=bench.dtype, device=bench.device) for _ in range(2))
    product = bench.seconds(lambda: a @ b, 6)
    bench.ceilings = Ceilings(
        bandwidth=max(2 * size / copy, size / read), flops=2 * side**3 / product
    )
    bench.add("copy, bytes read and written", 2 * size / copy / 1e12, "TB/s")
    bench.add("sum, bytes read", size / read / 1e12, "TB/s")
    bench.add(f"product of {side} x {side}", bench.ceilings.flops / 1e12, "TFLOP/s")
