import pytest
import torch
from torch import Tensor, nn

from fedatlas.algorithms import fedavg
from fedatlas.algorithms.fedper import KeepHead, fedper
from fedatlas.client import LocalWork
from fedatlas.errors import UsageError
from fedatlas.models import build_model
from fedatlas.parts import SGD
from raising import raises
from tiny import Norms, blob_federation, line_federation, play, same_bits


class Product(nn.Module):
    """Two parameters: logits (head * body * x, 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(1, 1, bias=False)
        self.head = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.body.weight, 1.0)
        nn.init.constant_(self.head.weight, 0.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        logit = self.head(features)
        return features, torch.cat([logit, torch.zeros_like(logit)], 1)


def test_bodies_are_averaged_and_heads_stay() -> None:
    """Body b = 1, head h = 0, lr 0.1, x = 2, two steps (one batch, two epochs).
    Client 0 (one example, label 0): step 1 has the logit 0, dL/dlogit = -1/2, so dL/dh = -1/2 * b x = -1 and
    dL/db = -1/2 * h x = 0: h = 0.1, b = 1. Step 2 has the logit 0.2, dL/dlogit = -1 / (1 + e^0.2) = -0.450166, so
    dL/dh = -0.900332 and dL/db = -0.450166 * 0.1 * 2 = -0.0900332: h = 0.1900332, b = 1.00900332.
    Client 1 (three examples, label 1) is its mirror image: h = -0.1900332, and b = 1.00900332 too.
    The shared body is 1.00900332; the heads, whose mean by examples would be -0.0950166, stay apart."""
    federation = line_federation(([2], [0]), ([2, 2, 2], [1, 1, 1]))
    algorithm = fedper().with_optimizer(SGD(lr=0.1))
    state, _, simulator = play(algorithm, Product(), federation, work=LocalWork(epochs=2))
    assert set(state.shared) == {"body.weight"}
    assert state.shared["body.weight"].item() == pytest.approx(1.00900332, abs=1e-6)
    heads = [simulator.memory[c]["personal"]["head.weight"].item() for c in (0, 1)]
    assert heads == pytest.approx([0.1900332, -0.1900332], abs=1e-6)


def test_a_client_goes_on_from_its_own_head() -> None:
    """As above, one step a round: the head of round 2 starts at the 0.1 of round 1 and not at 0."""
    federation = line_federation(([2], [0]), ([2, 2, 2], [1, 1, 1]))
    algorithm = fedper().with_optimizer(SGD(lr=0.1))
    _, _, simulator = play(algorithm, Product(), federation, rounds=2)
    assert simulator.memory[0]["personal"]["head.weight"].item() == pytest.approx(0.1900332, abs=1e-6)


def test_a_client_that_sits_out_keeps_its_head() -> None:
    federation = blob_federation(num_clients=6)
    heads: dict[int, dict[str, Tensor]] = {}
    for rounds in range(1, 6):
        _, records, simulator = play(fedper(), Norms(), federation, rounds=rounds, cohort=2)
        now = {c: memory["personal"] for c, memory in simulator.memory.items()}
        for client, head in heads.items():
            assert same_bits(head, now[client]) == (client not in records[-1].cohort)
        heads = now
    assert len(heads) > 2


def test_only_the_module_named_head_is_personal() -> None:
    model = build_model("resnet18", num_classes=3, input_shape=(3, 8, 8), width=4, head_norm=True)
    assert KeepHead().personal_parameters(model) == {"head.weight", "head.bias"}


def test_a_model_without_a_head_is_refused() -> None:
    with raises(UsageError, "head-unfit"):
        play(fedper(), nn.Sequential(nn.Linear(4, 3)), blob_federation())


def test_one_client_trains_as_in_fedavg() -> None:
    federation = blob_federation(num_clients=1)
    plain, _, _ = play(fedavg(), Norms(), federation, rounds=3)
    kept, _, simulator = play(fedper(), Norms(), federation, rounds=3)
    # the server adds a client's change to the model it sent, which may round otherwise than the client's own steps
    for name, value in {**kept.shared, **simulator.memory[0]["personal"]}.items():
        torch.testing.assert_close(value, plain.shared[name], rtol=1e-5, atol=1e-6)
