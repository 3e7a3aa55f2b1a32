"""Which module is the classifier: the one named exactly ``head``, under however many extensions."""

from torch import nn

from fedatlas.errors import UsageError

HEAD = "head"


def find_head(model: nn.Module) -> nn.Module:
    """Return the module whose path ends in ``head``: the outermost one that has parameters.

    >>> find_head(nn.ModuleDict({"body": nn.Linear(4, 8), "head": nn.Linear(8, 3)}))
    Linear(in_features=8, out_features=3, bias=True)
    """
    found = [
        (path.count("."), path, module)
        for path, module in model.named_modules()
        if path.rpartition(".")[2] == HEAD and any(True for _ in module.parameters())
    ]
    if not found:
        raise UsageError(
            f"{type(model).__name__} has no module named {HEAD!r} with parameters. "
            f"Name its classifier so (self.{HEAD} = ...), as the models of fedatlas do."
        )
    depth = min(depth for depth, _, _ in found)
    outermost = [(path, module) for level, path, module in found if level == depth]
    if len(outermost) > 1:
        paths = ", ".join(path for path, _ in outermost)
        raise UsageError(f"{type(model).__name__} has several modules named {HEAD!r} ({paths}). Name only its classifier so.")
    return outermost[0][1]


def head_parameters(model: nn.Module) -> list[str]:
    """Return the names of the classifier's trainable parameters, in the model's order.

    >>> head_parameters(nn.ModuleDict({"body": nn.Linear(4, 8), "head": nn.Linear(8, 3)}))
    ['head.weight', 'head.bias']
    """
    # By identity: a weight that the head shares with another layer has that layer's name.
    own = {id(parameter) for parameter in find_head(model).parameters()}
    names = [name for name, p in model.named_parameters() if id(p) in own and p.requires_grad]
    if not names:
        raise UsageError(f"the {HEAD!r} of {type(model).__name__} is frozen: none of its parameters is trained.")
    return names
