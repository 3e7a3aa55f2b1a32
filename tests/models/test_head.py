from torch import nn

from fedatlas.errors import UsageError
from fedatlas.models.head import find_head, head_parameters
from raising import raises
from tiny import Norms


class Wrapper(nn.Module):
    def __init__(self, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)


def test_the_head_is_found_under_extensions() -> None:
    model = Norms()
    assert head_parameters(model) == ["head.weight", "head.bias"]
    assert head_parameters(Wrapper(outer=Wrapper(model=model))) == ["outer.model.head.weight", "outer.model.head.bias"]
    assert find_head(Wrapper(model=model)) is model.head


def test_a_name_that_only_contains_head_is_not_the_head() -> None:
    model = Wrapper(header=nn.Linear(2, 2), multihead=nn.Linear(2, 2), head=nn.Linear(2, 2, bias=False))
    assert head_parameters(model) == ["head.weight"]


def test_the_outermost_head_is_taken_with_all_that_is_in_it() -> None:
    layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3, bias=False))
    model = Wrapper(attention=Wrapper(head=nn.Linear(2, 2)), head=layers)
    assert head_parameters(model) == ["head.0.weight", "head.0.bias", "head.1.weight"]


def test_a_tied_weight_is_found_under_its_first_name() -> None:
    embedding, head = nn.Embedding(5, 3), nn.Linear(3, 5)
    head.weight = embedding.weight
    assert head_parameters(Wrapper(embedding=embedding, head=head)) == ["embedding.weight", "head.bias"]


def test_a_model_without_a_head_is_refused() -> None:
    with raises(UsageError, "head-unfit", reason="missing"):
        head_parameters(Wrapper(classifier=nn.Linear(2, 2), head=nn.Identity()))


def test_two_heads_side_by_side_are_refused() -> None:
    with raises(UsageError, "head-unfit", reason="several", got=["a.head", "b.head"]):
        head_parameters(Wrapper(a=Wrapper(head=nn.Linear(2, 2)), b=Wrapper(head=nn.Linear(2, 2))))


def test_a_frozen_head_is_refused() -> None:
    model = Norms()
    model.head.requires_grad_(False)
    with raises(UsageError, "head-unfit", reason="frozen"):
        head_parameters(model)
