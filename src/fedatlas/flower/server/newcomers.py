"""Newcomers of a run: nodes that joined after the training get the model and adapt it to their data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.placing import Placement, place_cells
from fedatlas.config.config import Config
from fedatlas.errors import DataError, UsageError
from fedatlas.flower.node.adapt import RECORD
from fedatlas.flower.node.request import atlas_form
from fedatlas.flower.protocol.checks import check_arrays
from fedatlas.flower.protocol.data_form import DataForm
from fedatlas.flower.protocol.messages import (
    ABOUT,
    BUFFERS,
    SHARED,
    BadReplyError,
    Packing,
    arrays,
    num_bytes,
    plain,
    values,
)
from fedatlas.flower.server.exchange import Exchange, NetworkSettings
from fedatlas.flower.server.questions import ROW
from fedatlas.parts.disclosure import Shape
from fedatlas.parts.sharing import COMMON
from fedatlas.parts.types import ServerState, Tensors
from fedatlas.runs.manifest import add_file
from fedatlas.runs.run import ADAPTED, ATLAS, Run
from fedatlas.runs.schema import figure

FIGURES = ("num_examples", "num_steps", "num_tuned", "num_tested", "seconds", "loss")


def adapt_newcomers(config: Config, grid: Grid, folder: Path) -> Run:
    """Adapt a finished run to all connected clients that did not train in it, and save the results in its folder."""
    settings = NetworkSettings(**config.values["flower"])
    run = Run(folder)
    if "identity" not in run.resolved:
        raise UsageError(
            f"{folder} holds a run that was not made over Flower; use `fedatlas adapt`.",
            code="run-unfit",
            path=str(folder),
        )
    exchange = Exchange(grid, settings, lambda line: print(line, flush=True))
    trained = {client["name"] for client in run.resolved["federation"]["clients"] if not client["held_out"]}
    online = exchange.wait_for(lambda there: bool(there - trained), "a client that did not train")
    newcomers = sorted(online - trained)
    print(f"newcomers: {', '.join(newcomers)}", flush=True)
    checkpoint = run.checkpoint()
    form = DataForm.from_values(run.resolved["federation"]["form"])
    atlas = Atlas.load(folder / ATLAS) if (folder / ATLAS).exists() else None
    about = {
        "run": run.resolved["identity"],
        "round": checkpoint.state.round,
        "place": 0,
        "version": 0,
        "keep": [0],
        "atlas": atlas_form(atlas),
        "adapt": json.dumps(config.values["flower"]["adapt"]),
        "resolved": json.dumps(without_clients(run.resolved)),
        **form.values(),
    }
    strangers = [name for name in newcomers if name not in run.client_names]
    placed = _placements(exchange, run, atlas, about, strangers) if checkpoint.state.groups else {}
    packing, contents = Packing(), dict[str, RecordDict]()
    for name in newcomers:
        if (
            model := _model_of(exchange, form, name, (checkpoint.state, run.client_names), placed.get(name))
        ) is not None:
            shared, buffers = (packing.arrays(own) for own in model)
            contents[name] = RecordDict({SHARED: shared, BUFFERS: buffers, ABOUT: plain(about)})

    def check(name: str, records: RecordDict) -> dict[str, Any]:
        sent = {"bytes_received": num_bytes(contents[name]), "bytes_sent": num_bytes(records)}
        found = {**_figures(records, run.metric), "client": name, "round": checkpoint.state.round, **sent}
        if name in placed:
            found |= {"group": serving(checkpoint.state, placed[name].group), "placement": placed[name].to_dict()}
        return found

    found = exchange.ask("query.adapt", contents, check, round=checkpoint.state.round, stage="adapting")
    kept = {record["client"]: record for record in run.adapted} | found
    add_file(folder, ADAPTED, json.dumps(list(kept.values()), indent=1).encode())
    for name, record in found.items():
        print(
            f"{name}: {_told(record, run.metric)} after tuning {record['num_tuned']} numbers; "
            f"{record['bytes_received']:,} bytes down, {record['bytes_sent']:,} up",
            flush=True,
        )
    return run


def _told(record: Mapping[str, Any], metric: str) -> str:
    """Return the scores of a newcomer in words, or its loss where its test part is too small for scores."""
    if not record["num_tested"]:
        return f"no scores, as its test part is too small for its policy; mean training loss {record['losses'][0]:.4g}"
    before, after = (figure(metric, record[f"{metric}_{when}"]) for when in ("before", "after"))
    return f"{metric} {before} before, {after}"


def without_clients(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's settings without its clients: a newcomer need not know them."""
    federation = {**resolved["federation"], "clients": []}
    return {**resolved, "federation": federation, "machine": {}}


def _placements(
    exchange: Exchange, run: Run, atlas: Atlas | None, about: Mapping[str, Any], strangers: Sequence[str]
) -> dict[str, Placement]:
    """Return the groups of clients that the run does not know, by their vectors; none if it kept no atlas of groups.

    Each is asked for what its cells in the atlas's summary would be, and for nothing else.
    """
    given: list[list[str]] | None = run.resolved["algorithm"].get("sharing", {}).get("groups")
    if atlas is None or atlas.summary is None or given is None or not strangers:
        return {}
    group_of = {name: group for group, members in enumerate(given) for name in members}
    wanted = {name: Shape(table.dtype, tuple(table.shape[1:])) for name, table in atlas.summary.cells().items()}
    question = RecordDict({SHARED: arrays(atlas.summary.whitening.tensors()), ABOUT: plain(about)})
    cells = exchange.ask(
        "query.cells",
        dict.fromkeys(strangers, question),
        lambda _, records: check_arrays(records, ROW, wanted),
        round=int(about["round"]),
        stage="placing",
    )
    found = {name: place_cells(atlas, group_of, name, own) for name, own in cells.items()}
    for name, placement in found.items():
        print(f"{name}: {placement.describe()}", flush=True)
    return found


def serving(state: ServerState, group: int | None) -> int | None:
    """Return the group whose model serves a newcomer of a group; None for one that has not left the common model."""
    if group is None or not state.has_common_model:
        return group
    return group if state.group_of is not None and bool((state.group_of == group).any()) else None


def model_for(
    name: str, state: ServerState, roster: Sequence[str], placement: Placement | None = None
) -> tuple[Tensors, Tensors]:
    """Return the parameters and buffers that a newcomer gets; raise UsageError if no group of clients is its own.

    ``roster`` are the names of the run's clients; one that was held out may have a group. Where the groups have left a
    common model behind them, it serves a client without a group.
    """
    group = COMMON
    if state.group_of is not None and name in roster:
        group = int(state.group_of[roster.index(name)])
    elif placement is not None and (found := serving(state, placement.group)) is not None:
        group = found
    if placement is not None and not placement.placed and not state.has_common_model:
        raise UsageError(
            f"client {name!r} is {placement.describe()}",
            code="placement-uncertain",
            client=name,
            reason=placement.refusal,
        )
    parameters, buffers = state.model(group)
    grouped = {tensor for own in state.groups[:1] for tensor in (*own.shared, *own.buffers)}
    if group == COMMON and grouped - {*parameters, *buffers}:
        raise UsageError(
            f"client {name!r} has no group, and the {len(state.groups)} groups of this run have no model in common. "
            "Let it join before the training, as a held-out client of a known group.",
            code="client-missing",
            client=name,
            groups=len(state.groups),
        )
    return parameters, buffers


def _model_of(
    exchange: Exchange,
    form: DataForm,
    name: str,
    known: tuple[ServerState, Sequence[str]],
    placement: Placement | None,
) -> tuple[Tensors, Tensors] | None:
    """Return the model that a newcomer gets; leave it out and return None if its classes or its group are unknown."""
    try:
        if form.unite(exchange.known[name].form).classes != form.classes:
            raise DataError(
                f"its classes are not among {list(form.classes)}", code="names-unfit", known=list(form.classes)
            )
        return model_for(name, *known, placement)
    except (DataError, UsageError) as error:
        exchange.leave_out(name, "adapting", str(error))
        return None


def _figures(records: RecordDict, metric: str) -> dict[str, Any]:
    """Return the figures of a newcomer's reply, after a check that all numbers are finite.

    A node whose test part is too small for its policy sends no scores.
    """
    reply = values(records, RECORD)
    scores = [f"{name}_{when}" for name in (metric, "loss") for when in ("before", "after")]
    record: dict[str, Any] = {name: reply[name] for name in (*FIGURES, *(scores if reply["num_tested"] else ()))}
    for name, value in record.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise BadReplyError(f"{name} must be a finite number, got {value!r}", code="not-finite", name=name)
    words = {name: str(reply[name])[:200] for name in ("algorithm", "origin")}
    best = {f"{metric}_best": record[f"{metric}_after"]} if reply["num_tested"] else {}
    losses = [float(record.pop("loss"))]
    return {**words, "domain": None, **record, "losses": losses, **best, "curve": {}, "embedding": None}
