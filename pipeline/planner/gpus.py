"""What the data sheets of GPUs promise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """A row of a data sheet.

    Attributes:
        tflops: dense bf16 TFLOP/s.
        bandwidth_gbs: GB/s of its memory.
    """

    tflops: float
    bandwidth_gbs: float


GPUS = {
    "h200": Gpu(989, 4800),  # SXM
    "h100": Gpu(989, 3350),  # SXM
    "a100": Gpu(312, 2039),  # SXM, 80 GB
    "rtx4090": Gpu(165, 1008),
}
