"""The atlas of a run: the parameters that each client keeps, as the client's vector.

FedPCE's 32 numbers are made for it: clients with similar data end near each other (its Fig. 3). FedBN's scales and
shifts (its Fig. 1) and FedPer's heads make an atlas too. Where a client keeps no parameters but a term remembers a
vector of its data, that one is taken: FedGCR's mean prompt h~.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.provenance import made_of_run
from fedatlas.client.model import PERSONAL, branch_of
from fedatlas.errors import UsageError
from fedatlas.parts.objective import CLIENT_VECTOR
from fedatlas.parts.types import GROUP, Memory, Tensors
from fedatlas.runs.run import Run

FEATURE = "feature"


class JoinedClient(Protocol):
    """A client that joined a finished run, as adapting to it leaves it."""

    @property
    def client(self) -> str:
        """Its name."""
        ...

    @property
    def domain(self) -> str | None:
        """Its domain, if it has one."""
        ...

    @property
    def num_examples(self) -> int:
        """Training examples that were used."""
        ...

    @property
    def personal(self) -> Tensors:
        """Its own parameters and running statistics."""
        ...


def run_atlas(run: Run, *, parameters: Sequence[str] | None = None, adapted: Sequence[JoinedClient] = ()) -> Atlas:
    """Return the personal parameters of a run's clients, as half ``feature``; running statistics are left out.

    Args:
        run: one whose algorithm keeps something with its clients, such as fedpce, fedbn, fedper or fedgcr.
        parameters: only these, by name; None is all.
        adapted: clients that joined later, from ``Adapter.adapt_all``.
    """
    checkpoint = run.checkpoint()
    memories = {
        c: branch_of(memory, "" if checkpoint.state.group(c) is None else GROUP)
        for c, memory in sorted(checkpoint.clients.items())
    }
    known = {c: memory[PERSONAL] for c, memory in memories.items() if PERSONAL in memory}
    known = known or {c: own for c, memory in memories.items() if (own := _remembered(memory))}
    if not known:
        raise UsageError(
            f"{run.folder}: {run.name} keeps neither parameters nor a vector with its clients, so there is nothing to "
            "map. Use a run of fedpce, fedbn, fedper or fedgcr, or map the data instead.",
            code="run-unfit",
            run=str(run.folder),
            algorithm=run.name,
        )
    names = list(parameters or _without_statistics(next(iter(known.values()))))
    clients = run.resolved["federation"]["clients"]
    atlas = Atlas(
        names=tuple(clients[c]["name"] for c in known),
        halves={FEATURE: torch.stack([_vector(run, own, names) for own in known.values()])},
        sizes=torch.tensor([clients[c]["num_train"] for c in known]),
        domains=tuple(clients[c]["domain"] for c in known),
        provenance={
            "source": "run",
            "algorithm": run.name,
            "round": checkpoint.state.round,
            "parameters": names,
            **made_of_run(run.resolved),
        },
    )
    for one in adapted:
        vector = _vector(run, {name: own.cpu() for name, own in one.personal.items()}, names)
        atlas = atlas.add_client(one.client, {FEATURE: vector}, one.num_examples, one.domain)
    return atlas


def _remembered(memory: Memory) -> Tensors:
    """Return the vectors that terms remember of a client's data, by the term's name."""
    return {f"{term}/{CLIENT_VECTOR}": own[CLIENT_VECTOR] for term, own in memory.items() if CLIENT_VECTOR in own}


def _without_statistics(personal: Tensors) -> list[str]:
    return [name for name in personal if name.rpartition(".")[2] not in ("running_mean", "running_var")]


def _vector(run: Run, personal: Tensors, names: Sequence[str]) -> Tensor:
    missing = next((name for name in names if name not in personal), None)
    if missing is not None:
        raise UsageError(
            f"{run.folder}: clients keep {', '.join(sorted(personal))}, but not {missing!r}.",
            code="unknown-name",
            got=missing,
            known=tuple(sorted(personal)),
        )
    return torch.cat([personal[name].detach().float().flatten() for name in names])
