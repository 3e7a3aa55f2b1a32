"""What an algorithm builds around a model, and how it is taken off again for one client."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedatlas.algorithms import Projected, fedavg, fedpce
from fedatlas.errors import UsageError
from fedatlas.models import find_head
from fedatlas.parts.extension import Extension
from raising import raises
from tiny import Norms


class Louder(nn.Module):
    """A model whose logits are multiplied by a factor."""

    def __init__(self, model: nn.Module, factor: float) -> None:
        super().__init__()
        self.model, self.factor = model, nn.Parameter(torch.tensor(factor))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features, logits = self.model(inputs)
        return features, logits * self.factor


@dataclass(frozen=True, kw_only=True)
class Loud(Extension):
    """Multiplies the logits, and for inference multiplies the head's parameters instead."""

    factor: float = 2.0

    def extend(self, model: nn.Module) -> nn.Module:
        return Louder(model, self.factor)

    def bake(self, network: nn.Module) -> nn.Module:
        assert isinstance(network, Louder)
        with torch.no_grad():
            for parameter in find_head(network.model).parameters():
                parameter *= network.factor
        return network.model


def test_a_baked_network_is_a_plain_copy_that_says_the_same() -> None:
    algorithm = replace(fedavg(), extensions=(Loud(factor=2.0), Loud(factor=4.0)))
    network = algorithm.extend(Norms()).eval()
    baked = algorithm.bake(network)
    assert isinstance(baked, Norms)
    inputs = torch.randn(3, *_input_shape(network))
    assert torch.equal(baked(inputs)[1], network(inputs)[1])
    assert isinstance(network, Louder)
    assert float(network.factor.detach()) == 4.0


def _input_shape(network: nn.Module) -> tuple[int, ...]:
    first = next(module for module in network.modules() if isinstance(module, nn.Linear))
    return (first.in_features,)


def test_an_extension_says_what_is_left_of_it_and_whose_vector_it_holds() -> None:
    (norms,) = fedpce(head_norm="layer").extensions
    network = norms.extend(Norms())
    assert norms.baked_options() == {"head_norm": "layer"}
    assert norms.client_vector(network) == "embedding.vector"
    projected = Projected(width=3)
    assert projected.baked_options() is None
    assert projected.client_vector(network) is None


def test_a_record_holds_the_settings_of_an_extension() -> None:
    described = replace(fedavg(), extensions=(Loud(factor=3.0),)).describe()
    assert described["extensions"] == [{"part": "Loud", "factor": 3.0}]


def test_a_function_is_not_an_extension() -> None:
    with raises(UsageError, "wrong-type"):
        replace(fedavg(), extensions=(lambda model: model,))  # type: ignore[arg-type]


def test_a_setting_of_an_extension_that_must_be_a_number_is_checked() -> None:
    with raises(UsageError, "wrong-type"):
        Loud(factor="2")  # type: ignore[arg-type]
