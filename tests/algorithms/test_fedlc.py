import math
from dataclasses import replace

import pytest
import torch

from fedatlas.algorithms import fedavg
from fedatlas.algorithms.fedlc import CalibratedCrossEntropy, fedlc
from fedatlas.client import LocalWork, open_local
from fedatlas.errors import UsageError
from fedatlas.parts import SGD, Assignment, Batch, Output, words
from raising import raises
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits


def test_rare_classes_get_a_larger_margin() -> None:
    """x = 2, one example of class 0 and 16 of class 1: the shifts are 1^{-1/4} = 1 and 16^{-1/4} = 1/2. At w = 0 the
    share of class 0 is 1 / (1 + e^{1/2}) = 0.3775407. Slope for label 0: -2 * 0.6224593 = -1.2449187; for label 1:
    2 * 0.3775407 = 0.7550813. Mean over the 17: (-1.2449187 + 16 * 0.7550813) / 17 = 0.6374344; lr 0.1: -0.0637434."""
    federation = line_federation(([2] * 17, [0] + [1] * 16))
    algorithm = fedlc().with_optimizer(SGD(lr=0.1))
    state, _, _ = play(algorithm, Line(), federation, work=LocalWork(batch_size=17))
    assert state.shared["head.weight"].item() == pytest.approx(-0.0637434, abs=1e-6)


def test_a_class_the_client_lacks_gets_no_gradient_and_the_loss_is_finite() -> None:
    """Counts (1, 0, 2), tau 2, logits 0: the loss of label 0 is log(1 + e^{2 - 2 * 2^{-1/4}})."""
    federation = blob_federation(num_clients=2)
    labels = federation.data.labels.clone()
    labels[:3] = torch.tensor([0, 2, 2])
    clients = (replace(federation.clients[0], train=torch.arange(3)), federation.clients[1])
    federation = replace(federation, data=replace(federation.data, labels=labels), clients=clients)
    _, _, simulator = play(fedlc(tau=2.0), Norms(), federation)
    runner = simulator.runner
    shared, buffers = runner.bench.shared()
    assignment = Assignment(round=1, rounds=1, client=0, shared=shared, buffers=buffers)
    local = open_local(runner.algorithm, runner.work, assignment, runner.bench, {}, runner.data(0), 0)
    term = CalibratedCrossEntropy(tau=2.0)
    term.begin(local)
    logits = torch.zeros(1, 3, requires_grad=True)
    loss = term.loss(local, Batch(torch.zeros(1, 4), torch.tensor([0])), Output(torch.zeros(1, 8), logits))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(2 - 2 * 2**-0.25)), abs=1e-6)
    assert gradient[0, 1].item() == 0.0
    assert gradient[0, 0].item() == pytest.approx(-gradient[0, 2].item())


def test_logits_far_from_zero_do_not_overflow() -> None:
    """A literal exponential of a logit of 200 would be infinite in float32."""
    federation = line_federation(([2, 2], [0, 1]))
    state, records, _ = play(fedlc().with_optimizer(SGD(lr=0.1)), Line(start=100.0), federation)
    assert math.isfinite(records[0].losses[0])
    assert math.isfinite(state.shared["head.weight"].item())


def test_without_strength_it_is_fedavg_bit_for_bit() -> None:
    federation = blob_federation()
    plain, _, _ = play(fedavg(), Norms(), federation, rounds=3)
    without, _, _ = play(fedlc(tau=0.0), Norms(), federation, rounds=3)
    assert same_bits(plain.shared, without.shared)
    assert same_bits(plain.buffers, without.buffers)


def test_label_counts_stay_on_the_client() -> None:
    state, _, simulator = play(fedlc(), Norms(), blob_federation(), rounds=2, cohort=3)
    assert words(fedlc().disclosures()) == []
    assert all(client.introduction == {} for client in simulator.roster)
    assert simulator.memory == {}
    assert all(memory == {} for memory in state.memory.values())


def test_a_negative_strength_is_refused() -> None:
    with raises(UsageError, "out-of-range", setting="CalibratedCrossEntropy(tau)", got=-1):
        fedlc(tau=-1)
