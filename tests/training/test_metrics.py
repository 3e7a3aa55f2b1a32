import pytest
import torch

from fedatlas.client import mean_personal
from fedatlas.parts import ClientScore
from fedatlas.training.metrics import summarize


def _score(client: int, correct: int, total: int, loss: float = 1.0) -> ClientScore:
    return ClientScore(client=client, num_examples=total, values={"accuracy": correct / total, "loss": loss})


def test_metrics_of_an_unbalanced_example() -> None:
    """Domain A: clients 0.8 (10 examples) and 1.0 (10); domain B: one client 0.5 (80).
    By examples (8 + 10 + 40) / 100 = 0.58; over clients 2.3 / 3; over domains (0.9 + 0.5) / 2 = 0.7, std 0.2."""
    scores = [_score(0, 8, 10, 2.0), _score(1, 10, 10, 1.0), _score(2, 40, 80, 3.0)]
    summary = summarize(scores, {0: "A", 1: "A", 2: "B"})
    assert summary["accuracy"] == pytest.approx(0.58)
    assert summary["client_mean"] == pytest.approx(2.3 / 3)
    assert summary["loss"] == pytest.approx((20 + 10 + 240) / 100)
    assert summary["domain_mean"] == pytest.approx(0.7)
    assert summary["domains"] == pytest.approx({"A": 0.9, "B": 0.5})
    assert summary["worst_domain"] == 0.5
    assert summary["worst_domain_name"] == "B"
    assert summary["sigma_type"] == pytest.approx(0.2)
    assert summary["sigma_client"] == pytest.approx(
        (((0.8 - 2.3 / 3) ** 2 + (1 - 2.3 / 3) ** 2 + (0.5 - 2.3 / 3) ** 2) / 3) ** 0.5
    )
    assert summary["worst_client"] == 0.5
    assert summary["worst_client_id"] == 2
    assert summary["bottom_decile"] == 0.5


def test_the_bottom_decile_of_twenty_clients_is_the_mean_of_two() -> None:
    summary = summarize([_score(i, i + 1, 20) for i in range(20)], {})
    assert summary["bottom_decile"] == pytest.approx((1 / 20 + 2 / 20) / 2)
    assert summary["deciles"][4] == pytest.approx(10.5 / 20)
    assert "domain_mean" not in summary


def test_no_scores_give_no_metrics() -> None:
    assert summarize([], {}) == {}


def test_ids_are_not_positions_and_a_tenth_is_rounded_down() -> None:
    """Eleven clients of ids 10, 12, ..., with 11 to 1 of 20 right: the worst is the last, of id 30, and alone a tenth
    of eleven. Losses 1 to 11 have the mean 6."""
    scores = [_score(10 + 2 * i, 11 - i, 20, loss=i + 1.0) for i in range(11)]
    summary = summarize(scores, {})
    assert summary["worst_client_id"] == 30
    assert summary["bottom_decile"] == pytest.approx(1 / 20)
    assert summary["client_mean_loss"] == pytest.approx(6.0)


def test_the_mean_of_what_is_personal_is_over_those_who_have_it() -> None:
    """1 and 3 have the mean 2; a third client remembers something else only."""
    own = [{"personal": {"v": torch.tensor([value])}} for value in (1.0, 3.0)]
    found = mean_personal({4: own[0], 7: own[1], 9: {"moon": {"w": torch.zeros(1)}}})
    assert found["v"].tolist() == [2.0]
