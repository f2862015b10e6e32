"""What processes take for themselves, before any of them holds a weight."""

from dataclasses import dataclass

GIB = 2**30

LIBRARY_BYTES = GIB // 4
"""Of host memory, once for all processes: the files of libraries that they map.
Measured on CPU builds: .20 to .24."""
HOST_BYTES = GIB // 2
"""Of host memory, by each process that has imported its libraries, at most. Measured on CPU builds: a stage
.31, a rank that scores .33, one of DeepSpeed .35, a replica of vLLM .46 GiB."""
CUDA_HOST_BYTES = 2 * GIB
"""The same with CUDA's libraries, its context and pinned buffers (start value)."""
CONTEXT_BYTES = GIB // 2
"""Of a GPU, by each process that computes on it: context, kernels, workspace of cuBLAS (start value)."""
NCCL_BYTES = GIB // 2
"""Of a GPU, by each process that exchanges tensors with others: NCCL's buffers (start value)."""


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of one stage, and what they take for themselves."""

    number: int
    on_gpu: int = 0  # of them, with a GPU
    contexts: int = 0  # on the GPU that most of them compute on
    exchanging: int = 0  # of those, by NCCL

    @property
    def device_bytes(self) -> int:
        """On the fullest GPU."""
        return self.contexts * CONTEXT_BYTES + self.exchanging * NCCL_BYTES

    @property
    def host_bytes(self) -> int:
        """On the whole machine."""
        return LIBRARY_BYTES + self.on_gpu * CUDA_HOST_BYTES + (self.number - self.on_gpu) * HOST_BYTES
