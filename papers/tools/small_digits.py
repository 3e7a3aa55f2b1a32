"""The embedded handwritten digits as 64 numbers each, for measurements with very many small trainings."""

from torch.nn.functional import avg_pool2d

from fedatlas import from_arrays, load_dataset
from fedatlas.data import Dataset


def small_digits() -> Dataset:
    """Return the 1,600 handwritten digits, made grey and 8x8."""
    data = load_dataset("digits").of_domains(["handwritten"])
    small = avg_pool2d(data.inputs.float().mean(1, keepdim=True) / 255, 4).flatten(1)
    return from_arrays(small.numpy(), data.labels.numpy(), name="digits, 8x8")
