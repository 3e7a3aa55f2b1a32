import torch
from torch import Tensor, nn

from fedatlas.client.channels_last import prefers_channels_last
from fedatlas.models import build_model

IMAGES = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)


class Viewing(nn.Module):
    """The tutorials' way to flatten, which needs the channels first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4 * 36, 2)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.conv(inputs).view(-1, 4 * 36)
        return features, self.head(features)


def test_convolutions_take_the_channels_last_unless_a_slow_norm_or_a_view_is_among_them() -> None:
    def build(name: str, **options: str) -> nn.Module:
        return build_model(name, num_classes=2, input_shape=(3, 8, 8), seed=0, **options)

    assert prefers_channels_last(build("cnn"), IMAGES)
    assert prefers_channels_last(build("cnn", norm="batch"), IMAGES)
    assert not prefers_channels_last(build("cnn", norm="group"), IMAGES)
    assert not prefers_channels_last(build("mlp"), IMAGES)
    assert not prefers_channels_last(Viewing(), IMAGES)


def test_finding_out_leaves_the_network_and_the_random_state_as_they_were() -> None:
    model = build_model("cnn", num_classes=2, input_shape=(3, 8, 8), seed=0, norm="batch").train()
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.random.get_rng_state()
    prefers_channels_last(model, IMAGES)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)
