"""IFCA. Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020.

server: k models theta_1..theta_k, sent to every client of the round
client: j = argmin_j F_i(theta_j), its loss on its training data; local steps from theta_j
server: theta_j^{t+1} = theta_j + sum over clients i that chose j of (n_i / sum n) (change of i)

This is the paper's model averaging (Algorithm 1, option II). With ``level="head"`` it is section 6's weight sharing:
one body, k heads.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError, expect
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.disclosure import Disclosure
from fedatlas.parts.sharing import COMMON, Level, Sharing
from fedatlas.parts.types import Roster, Tensors
from fedatlas.seeds import generator


@dataclass(frozen=True, kw_only=True)
class ByLoss(Sharing):
    """Each client takes, in each round, the model under which its training data has the lowest loss."""

    name: ClassVar[str] = "by_loss"
    asks: ClassVar[bool] = True
    discloses: ClassVar[tuple[Disclosure, ...]] = (
        Disclosure("means", "the client's mean loss under each group's model", "losses", ("k",), torch.float64),
    )
    k: int = 2
    """The number of groups."""
    level: Level = "all"
    seed: int = 0
    """Of the groups' first parameters."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 1:
            raise UsageError(
                f"ByLoss(k) must be at least 1, got {self.k}.", code="out-of-range", setting="ByLoss(k)", got=self.k
            )

    def place(self, roster: Roster) -> Tensor:
        """Return that no client has chosen yet."""
        return torch.full((len(roster),), COMMON)

    def num_groups(self, group_of: Tensor) -> int:
        """Return k."""
        return self.k

    def initial(self, shared: Tensors, group: int) -> Tensors:
        """Return the group's first parameters: for the first group the model's, for others these in another order.

        A network's first weights are independent draws, so in another order they are as good a draw. Constant tensors,
        such as the scales of norms, stay as they are. The authors draw k networks.
        """
        if group == 0:
            return shared
        rng = generator(self.seed, "first parameters", group)
        return {
            name: tensor.flatten()[torch.randperm(tensor.numel(), generator=rng).to(tensor.device)].view_as(tensor)
            for name, tensor in shared.items()
        }


@recipe(changes="sharing", over="base", paper="Ghosh et al. 2020")
def ifca(k: int = 2, base: Algorithm | None = None, level: Level = "all", seed: int = 0) -> Algorithm:
    """``base`` (FedAvg) with k models; each client takes the one with the lowest loss on its data."""
    base = base if base is not None else fedavg()
    expect(base, Algorithm, "ifca(base) must be an algorithm", "Write ifca(k=4, base=fedatlas.algorithms.fedavg()).")
    name = "ifca" if base.name == "fedavg" else f"ifca+{base.name}"
    return replace(base, name=name, sharing=ByLoss(k=k, level=level, seed=seed))
