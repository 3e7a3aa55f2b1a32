"""Questions to all clients before any training, each asked again until every client has answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeVar

import torch
from flwr.app import RecordDict

from fedatlas.atlas.summary import CELLS, Summary, Sums, fit_whitening, summary_disclosures
from fedatlas.errors import UsageError
from fedatlas.flower.protocol.checks import check_arrays
from fedatlas.flower.protocol.data_form import DataForm, Member
from fedatlas.flower.protocol.messages import ABOUT, SHARED, arrays, plain
from fedatlas.flower.server.exchange import Exchange
from fedatlas.flower.server.transport import TRIES
from fedatlas.parts.disclosure import Disclosure, Shape, Shapes
from fedatlas.parts.types import Tensors
from fedatlas.seeds import repeatable

ROW = "row"
"""The record of a reply that holds its tensors."""
Answer = TypeVar("Answer")


class Questions:
    """Asks the clients of a run; all of them must answer."""

    def __init__(
        self, exchange: Exchange, members: Sequence[Member], about: Mapping[str, Any], stage: str = "atlas"
    ) -> None:
        self.exchange, self.members, self.about, self.stage = exchange, list(members), dict(about), stage

    def rows(self, kind: str, shared: Tensors, form: Shapes) -> dict[str, Tensors]:
        """Return the tensors of this form that every client sends."""
        return self.ask(kind, shared, self.members, lambda records: check_arrays(records, ROW, form))

    def ask(
        self, kind: str, shared: Tensors, members: Sequence[Member], check: Callable[[RecordDict], Answer]
    ) -> dict[str, Answer]:
        """Return the reply of every member; raise UsageError if one is missing after all tries."""
        down = arrays(shared)
        return self.tell(kind, {m.name: RecordDict({SHARED: down, ABOUT: plain(self.about)}) for m in members}, check)

    def tell(
        self, kind: str, contents: Mapping[str, RecordDict], check: Callable[[RecordDict], Answer]
    ) -> dict[str, Answer]:
        """Return the reply of every client to its message."""
        answers: dict[str, Answer] = {}
        for _ in range(TRIES):
            missing = {name: own for name, own in contents.items() if name not in answers}
            if not missing:
                return answers
            self.exchange.wait_for(set(missing).issubset, f"{', '.join(missing)}, to make the {self.stage}")
            answers |= self.exchange.ask(kind, missing, lambda _, records: check(records), round=0, stage=self.stage)
            self.exchange.check_allowed(name for name in missing if name not in answers)
        if silent := [name for name in contents if name not in answers]:
            raise UsageError(
                f"the {self.stage} needs the replies of {', '.join(silent)}; look at the nodes' logs.",
                code="reply-missing",
                clients=silent,
            )
        return answers

    def summary(self, form: DataForm, labelled: bool) -> Summary | None:
        """Return the summary of all members: the sums of those that train, then all cells; None if it says nothing."""
        wanted = resolved(summary_disclosures(labelled), {"classes": len(form.classes)})
        training = [member for member in self.members if not member.held_out]
        first = {name: wanted[name] for name in ("counts", "sums", "scatter_matrix")}
        sums = self.ask("query.sums", {}, training, lambda records: check_arrays(records, ROW, first))
        with repeatable(torch.device("cpu")):
            whitening = fit_whitening(reduce(Sums.plus, (Sums.from_tensors(sums[m.name]) for m in training)))
        if whitening is None:
            return None
        cells = self.rows("query.cells", whitening.tensors(), {name: wanted[name] for name in CELLS})
        return Summary.collect(whitening, labelled, (cells[m.name] for m in self.members))


def resolved(declared: Iterable[Disclosure], lengths: Mapping[str, int]) -> Shapes:
    """Return the shapes of declared tensors by name, with the lengths of named axes."""
    return {
        str(own.name): Shape(own.dtype, tuple(lengths[axis] if isinstance(axis, str) else axis for axis in own.axes))
        for own in declared
    }
