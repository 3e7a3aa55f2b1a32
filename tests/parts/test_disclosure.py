"""Declarations of what leaves a client, made into shapes by the network, the data and the part's settings."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from fedatlas.algorithms import build_algorithm, fedavg
from fedatlas.client import Workbench
from fedatlas.flower import DataForm, expected_replies
from fedatlas.parts.disclosure import Declared, Dimensions, Disclosure, Each, Shape, UpTo, declared, words
from fedatlas.parts.weighting import ByExamples

FLOAT = torch.float32
LOSS = {"received_loss": {"loss": Shape(FLOAT, ())}}


class Pair(nn.Module):
    """A body and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)


def dimensions(network: nn.Module, inputs: tuple[int, ...] = (4,)) -> Dimensions:
    shared, _ = Workbench(network, fedavg()).shared()
    return Dimensions.of(network, shared, inputs, 3)


@dataclass(frozen=True, kw_only=True)
class Asks(ByExamples):
    """Declares a tensor by every kind of axis."""

    name: ClassVar[str] = "asks"
    discloses: ClassVar[tuple[Disclosure, ...]] = (
        Disclosure("counts", "a", "introduction", ("classes",)),
        Disclosure("means", "a", "introduction", (UpTo("most"), "inputs"), sender="some"),
        Disclosure("rest", "b", "introduction", (UpTo(9), "features", "most", 2, None), torch.int64),
        Disclosure(Each.HEAD, "c", "survey", sender="training"),
        Disclosure(Each.SHARED, "d", sender="stepping"),
    )
    most: int = 7


def test_axes_are_found_in_the_data_the_network_and_the_part() -> None:
    known = declared([Asks()], "introduction", dimensions(Pair(), (1, 8, 6)))
    assert known.shapes["asks"] == {
        "counts": Shape(FLOAT, (3,)),
        "means": Shape(FLOAT, (UpTo(7), 1, 8, 6)),
        "rest": Shape(torch.int64, (UpTo(9), 5, 7, 2, None)),
    }
    assert known.senders == {"asks": "some"}  # the least of its tensors' senders


def test_a_tensor_a_parameter_has_the_parameters_shape() -> None:
    size = dimensions(Pair())
    head = {"head.weight": Shape(FLOAT, (3, 5)), "head.bias": Shape(FLOAT, (3,))}
    surveys, uploads = declared([Asks()], "survey", size), declared([Asks()], "upload", size)
    assert surveys == Declared({"asks": head}, {"asks": "training"})
    assert uploads.shapes["asks"].keys() == {"body.weight", "body.bias", *head}
    assert uploads.senders == {"asks": "stepping"}


def test_a_network_without_a_linear_head_leaves_the_width_of_features_open() -> None:
    for network in (nn.Sequential(nn.Linear(4, 3)), nn.ModuleDict({"head": nn.Sequential(nn.Linear(4, 3))})):
        assert dimensions(network).lengths["features"] is None


def test_who_took_no_step_may_leave_out_what_comes_of_steps() -> None:
    known = Declared({"control": {"w": Shape(FLOAT, (2,))}}, {"control": "stepping"})
    assert known.fault({}) == "control did not say 'w'"
    assert known.fault({}, stepped=False) is None
    assert known.fault({"control": {"w": torch.ones(2)}}) is None


def test_words_come_once() -> None:
    assert words(Asks.discloses) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("name", "options", "when", "said"),
    [
        ("qffl", {}, "notes", {"received_loss": {"loss": Shape(FLOAT, ())}}),
        (
            "fedgr",
            {},
            "notes",
            {"type_vector": {"mean": Shape(FLOAT, (5,))}, "received_loss": {"loss": Shape(FLOAT, ())}},
        ),
        ("feddisco", {}, "introductions", {"discrepancy": {"label_counts": Shape(FLOAT, (3,))}}),
        (
            "fedmix",
            {"max_groups": 4},
            "introductions",
            {
                "mixed_cross_entropy": {
                    "inputs": Shape(FLOAT, (UpTo(4), 4)),
                    "labels": Shape(FLOAT, (UpTo(4), 3)),
                }
            },
        ),
    ],
)
def test_a_server_knows_what_to_expect_without_training(
    name: str, options: dict[str, Any], when: str, said: dict[str, dict[str, Shape]]
) -> None:
    form = DataForm(kind="features", shape=(4,), classes=("a", "b", "c"))
    expected = expected_replies(build_algorithm(name, **options), Pair(), form)
    assert getattr(expected, when).shapes == said
    assert expected.change.keys() == {"body.weight", "body.bias", "head.weight", "head.bias"}
