"""Which module is the classifier: the one named exactly ``head``, under however many extensions."""

from torch import nn

from fedatlas.errors import UsageError
from fedatlas.models.logits_only import LogitsOnly

HEAD = "head"


def find_head(model: nn.Module) -> nn.Module:
    """Return the module whose path ends in ``head``: the outermost one that has parameters.

    >>> find_head(nn.ModuleDict({"body": nn.Linear(4, 8), "head": nn.Linear(8, 3)}))
    Linear(in_features=8, out_features=3, bias=True)
    """
    for module in model.modules():
        if isinstance(module, LogitsOnly) and module.layer is not None:
            return module.network.get_submodule(module.layer)
    found: dict[str, nn.Module] = {
        path: module
        for path, module in model.named_modules()
        if path.rpartition(".")[2] == HEAD and any(True for _ in module.parameters())
    }
    where = type(model).__name__
    if not found:
        raise UsageError(
            f"{where} has no module named {HEAD!r} with parameters. "
            f"Name its classifier so (self.{HEAD} = ...), as the models of fedatlas do.",
            code="head-unfit",
            reason="missing",
        )
    depth = min(path.count(".") for path in found)
    outermost = [path for path in found if path.count(".") == depth]
    if len(outermost) > 1:
        raise UsageError(
            f"{where} has several {HEAD!r} modules ({', '.join(outermost)}). Rename all but its classifier.",
            code="head-unfit",
            reason="several",
            got=outermost,
        )
    return found[outermost[0]]


def head_parameters(model: nn.Module) -> list[str]:
    """Return the names of the classifier's trainable parameters, in the model's order.

    >>> head_parameters(nn.ModuleDict({"body": nn.Linear(4, 8), "head": nn.Linear(8, 3)}))
    ['head.weight', 'head.bias']
    """
    # By identity: a weight that the head shares with another layer has that layer's name.
    own = {id(parameter) for parameter in find_head(model).parameters()}
    names = [name for name, p in model.named_parameters() if id(p) in own and p.requires_grad]
    if not names:
        raise UsageError(
            f"the {HEAD!r} of {type(model).__name__} is frozen: none of its parameters is trained.",
            code="head-unfit",
            reason="frozen",
        )
    return names
