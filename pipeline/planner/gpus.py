"""What the data sheets of GPUs promise."""

from typing import NamedTuple


class Gpu(NamedTuple):
    """Dense bf16 TFLOP/s, and GB/s of its memory."""

    tflops: float
    bandwidth_gbs: float


GPUS = {
    "h200": Gpu(989, 4800),  # SXM
    "h100": Gpu(989, 3350),  # SXM
    "a100": Gpu(312, 2039),  # SXM, 80 GB
    "rtx4090": Gpu(165, 1008),
}
