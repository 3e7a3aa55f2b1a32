"""The outputs of a frozen network for a client's training examples, computed once and kept.

A batch of unchanged examples is recognised as its client's until it is modified. A network whose weights never change
need not process it again: its rows come from a table. The table is made at the first request, from all of the client's
examples, in their order and in batches of a fixed size. So the bits do not depend on the order of batches or the number
of workers, and are the same in a resumed run.
"""

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

BATCH = 256
_shown = WeakTensorKeyDictionary()
"""Batches that are alive: whose examples they show, which, and the version of the tensor that shows them."""

_places = WeakTensorKeyDictionary()
"""Fixed places of captured steps that are alive."""

Read = Callable[[Tensor], Tensor]


class KeptPasses:
    """The outputs of frozen networks for one client's training examples."""

    def __init__(self, train: Tensor, read: Read) -> None:
        self._train, self._read = train, read
        self._sorted, self._places = train.sort()
        self._made: WeakKeyDictionary[nn.Module, tuple[list[tuple[int, int]], Tensor]] = WeakKeyDictionary()
        self._makers: WeakKeyDictionary[nn.Module, Read] = WeakKeyDictionary()
        self._weights: WeakKeyDictionary[nn.Module, list[dict[str, nn.Parameter | None]]] = WeakKeyDictionary()

    def show(self, inputs: Tensor, indices: Tensor) -> None:
        """Note that a batch shows these of the client's examples, as they are."""
        if not inputs.is_inference():
            _shown[inputs] = (self, indices, inputs._version)

    def makers(self) -> list[tuple[nn.Module, Read]]:
        """Return the networks that have passed the examples, and how."""
        return list(self._makers.items())

    def rows(self, network: nn.Module, make: Read, indices: Tensor) -> Tensor:
        """Return what ``make``, a pass through the network, makes of examples."""
        # By the modules' own tables: walking through the modules again takes as long as a small batch.
        tables = self._weights.get(network)
        if tables is None:
            tables = self._weights[network] = [module._parameters for module in network.modules()]
        weights = [(id(w), w._version) for table in tables for w in table.values() if w is not None]
        known, table = self._made.get(network, (None, None))
        if table is None or known != weights:
            # In full precision, whatever the training's: it is done once.
            with torch.no_grad(), torch.autocast(self._train.device.type, enabled=False):
                table = torch.cat([make(self._read(part)) for part in self._train.split(BATCH)])
            self._made[network], self._makers[network] = (weights, table), make
        return table[self._places[torch.searchsorted(self._sorted, indices)]]


class _Place:
    """A fixed buffer for a batch, and the outputs of frozen networks for the batch that it holds now."""

    def __init__(self) -> None:
        self.made: dict[nn.Module, tuple[Read, Tensor]] = {}


def follow(place: Tensor, inputs: Tensor, model: nn.Module) -> None:
    """Note that a batch was copied to a fixed place, where a captured step of a model finds it.

    What the model's frozen networks made of it goes along.
    """
    there = _places.get(place)
    kept, indices, version = _shown.get(inputs, (None, None, None))
    if kept is not None and inputs._version != version:
        kept = None
    if there is None and kept is not None:
        there = _places[place] = _Place()
        own = set(model.modules())
        for network, make in kept.makers():
            if network in own:
                there.made[network] = (make, kept.rows(network, make, indices).clone())
    elif there is not None:
        for network, (make, rows) in there.made.items():
            rows.copy_(make(inputs) if kept is None else kept.rows(network, make, indices))


def kept_pass(inputs: Tensor, network: nn.Module, make: Read) -> Tensor | None:
    """Return what a frozen network makes of a batch, if the batch shows a client's training examples as they are."""
    place = _places.get(inputs)
    if place is not None and network in place.made:
        rows: Tensor = place.made[network][1]
        return rows
    kept, indices, version = _shown.get(inputs, (None, None, None))
    return kept.rows(network, make, indices) if kept is not None and inputs._version == version else None
