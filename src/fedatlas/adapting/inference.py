"""A run's network for use: built again with its trained values, and inputs prepared as in training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedatlas.client.model import PERSONAL, Workbench, branch_of
from fedatlas.client.scoring import mean_personal
from fedatlas.config.reopen import PREPARATION, is_model_name, run_algorithm
from fedatlas.data.dataset import DTYPES
from fedatlas.data.federation import find_client
from fedatlas.data.loading.arrays import as_inputs
from fedatlas.data.loading.cells import Frame, read_cells
from fedatlas.data.loading.measurements import read_columns
from fedatlas.data.preparation import Preparation
from fedatlas.data.table import CATEGORY
from fedatlas.errors import DataError, UsageError
from fedatlas.models import build_model
from fedatlas.models.logits_only import wrapped_alike
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.split import Split
from fedatlas.parts.types import GROUP
from fedatlas.runs.groups import serving_group
from fedatlas.seeds import Seeds
from fedatlas.training.model import Model, extended, own_network

if TYPE_CHECKING:
    from fedatlas.runs.run import Run


def trained_network(
    run: Run,
    client: str | int | None = None,
    *,
    group: int | None = None,
    network: Model | None = None,
    algorithm: Algorithm | None = None,
) -> nn.Module:
    """Return a run's network for inference, with a client's own parameters where clients have any.

    Where groups of clients have a model each, it is that of the client's group, or of ``group``.
    """
    algorithm = _algorithm(run, algorithm)
    number = None if client is None else find_client(run.client_names, client)
    seed = Seeds(**run.resolved["seeds"]).model
    checkpoint = run.checkpoint()
    plain = _by_name(run, seed) if network is None else own_network(network, seed)
    if network is not None and not algorithm.extensions:
        state = checkpoint.state
        plain = wrapped_alike(plain, {**state.shared, **(state.groups[0].shared if state.groups else {})})
    bench = Workbench(extended(plain, algorithm, seed), algorithm)
    group = serving_group(run.folder, run.client_names, checkpoint.state, number, group)
    shared, buffers = checkpoint.state.model(group)
    wanted = {name: value.shape for name, value in bench.initial.items() if name not in bench.personal}
    if {name: value.shape for name, value in {**shared, **buffers}.items()} != wanted:
        raise UsageError(
            f"{run.folder} holds the parameters of another network; give network= as it was in training.",
            code="settings-differ",
            path=str(run.folder),
        )
    if bench.personal and run.resolved["machine"]["engine"] == "flower":
        raise UsageError(
            f"{run.folder}: the personal values of {run.name}'s clients are stored at their nodes, not here.",
            code="value-missing",
            path=str(run.folder),
        )
    if bench.personal and number is None:
        some = ", ".join(sorted(bench.personal)[:3])
        raise UsageError(
            f"{run.name} keeps parameters with each client ({some}), so each has its model. Name one with client= (on "
            f"the command line, --client), such as {run.client_names[0]!r}.",
            code="missing-option",
            option="client",
        )
    own, place = {}, None
    if bench.personal and number is not None:
        # As in the run's evaluations: own values, else for a newcomer the mean, else the first values of its position.
        clients = run.resolved["federation"]["clients"]
        held_out = clients[number]["held_out"]
        own = branch_of(checkpoint.clients.get(number, {}), "" if group is None else GROUP).get(PERSONAL, {})
        if not own and held_out and algorithm.split.newcomers_take_the_mean:
            own = mean_personal(checkpoint.clients)
        place = sum(other["held_out"] == held_out for other in clients[:number])
    bench.load(shared, buffers, own, place)
    return algorithm.bake(bench.model).eval().requires_grad_(False)


def prepared_inputs(run: Run, inputs: Any) -> Tensor:
    """Return examples in the form in which the run's network was trained on them.

    Examples are given as ``from_arrays`` takes them; those of a run on a table, as a frame or a file with its columns.
    """
    kind, form = run.resolved["federation"]["kind"], run.resolved["federation"]["form"]
    if PREPARATION in form and isinstance(inputs, Frame | str | Path):
        return _rows(Preparation.from_described(form[PREPARATION]), inputs)
    wanted = (DTYPES[kind], tuple(form["shape"]))
    try:
        tensor = torch.as_tensor(inputs)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"inputs must be an array of numbers, got {inputs!r:.80}. Give examples as the data set of {run.folder} "
            "holds them.",
            code="wrong-type",
            setting="inputs",
        ) from error
    if (tensor.dtype, tuple(tensor.shape[1:])) != wanted:
        tensor = as_inputs("inputs", tensor, kind).to(tensor.device)
    if (tensor.dtype, tuple(tensor.shape[1:])) != wanted:
        shape = ", ".join(["N", *map(str, form["shape"])])
        raise DataError(
            f"{run.folder} was trained on {kind} of {wanted[0]} and shape ({shape}); got {tensor.dtype} of shape "
            f"{tuple(tensor.shape)}. Give examples as its data set holds them; images may have their channels last.",
            code="wrong-shape",
            got=tuple(tensor.shape),
            wanted=wanted[1],
        )
    if kind != "image":
        return tensor
    tensor = tensor.float().div_(255)
    if form["mean"]:
        mean, std = (torch.tensor(form[name], device=tensor.device).view(1, -1, 1, 1) for name in ("mean", "std"))
        tensor = tensor.sub_(mean).div_(std)
    return tensor


def _rows(preparation: Preparation, source: Frame | str | Path) -> Tensor:
    """Return the rows of a table as inputs; columns that the run does not use, such as the label, may be there."""
    cells = read_cells(source)
    used = [column for column in preparation.columns if column.name in cells.columns]
    preparation.places(tuple(column.name for column in used), tuple(column.kind for column in used))
    codes = {column.name for column in used if column.kind == CATEGORY}
    table = read_columns(cells, [column.name for column in used], codes)
    return torch.from_numpy(preparation.inputs(table))


def _algorithm(run: Run, given: Algorithm | None) -> Algorithm:
    """Return an algorithm with the run's extensions of the model and its split."""
    then = run.resolved["algorithm"]
    if given is None and not then["extensions"] and then["split"]["part"] == Split.__name__:
        return Algorithm(name=run.name, split=Split(buffers=then["split"]["buffers"]))
    return run_algorithm(run, given)


def _by_name(run: Run, seed: int) -> nn.Module:
    model, form = run.resolved["model"], run.resolved["federation"]["form"]
    if not is_model_name(model["name"]):
        raise UsageError(
            f"{run.folder} was trained with a custom model, {model['name']}. Give it, or the function that makes "
            "it: run.model(network=...).",
            code="missing-option",
            option="network",
        )
    return build_model(
        model["name"],
        num_classes=len(run.resolved["federation"]["classes"]),
        input_shape=tuple(form["shape"]),
        vocabulary_size=len(form["vocabulary"]),
        seed=seed,
        **model["options"],
    )
