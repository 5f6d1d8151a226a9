"""Made rows kept on the device: steps draw from them while others are made."""

from torch import Tensor

from training.batches import Batch


class Pool:
    """The last ``size`` rows of a stream, a multiple of each batch's rows."""

    def __init__(self, first: Batch, size: int) -> None:
        self.size = size
        self.filled = self.next = 0
        self.rows = Batch(**{name: v.new_zeros((size, *v.shape[1:])) for name, v in first.tensors().items()})

    def put(self, batch: Batch) -> None:
        """Take the rows in, over the oldest ones once it is full."""
        end = self.next + len(batch)
        for name, value in batch.tensors().items():
            getattr(self.rows, name)[self.next : end] = value
        self.filled, self.next = max(self.filled, end), end % self.size

    def draw(self, index: Tensor) -> Batch:
        """The rows of these numbers; they may change between replays of a CUDA graph."""
        return Batch(**{name: value[index] for name, value in self.rows.tensors().items()})
