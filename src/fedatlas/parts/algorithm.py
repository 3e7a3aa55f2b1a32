"""An algorithm: sampling, objective, weights, server rules, and who shares which parameters."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import nn

from fedatlas.data.federation import Federation
from fedatlas.errors import UsageError, expect
from fedatlas.parts.disclosure import Disclosure
from fedatlas.parts.extension import Extension
from fedatlas.parts.objective import CrossEntropy, Term
from fedatlas.parts.optimizer import SGD, LocalOptimizer
from fedatlas.parts.part import plain
from fedatlas.parts.sampler import Sampler, Uniform
from fedatlas.parts.server_rule import ServerRule
from fedatlas.parts.sharing import One, Sharing
from fedatlas.parts.split import Buffers, ShareAll, Split
from fedatlas.parts.weighting import ByExamples, Equal, Weighting

OPTIMIZER = "Write fedatlas.SGD(lr=0.05) or fedatlas.Adam(lr=0.001)."
ONE: dict[str, type] = {"sampler": Sampler, "split": Split, "sharing": Sharing, "optimizer": LocalOptimizer}
SEVERAL: dict[str, type] = {"objective": Term, "weighting": Weighting, "server": ServerRule, "extensions": Extension}
"""The slots that hold one part, or a tuple of parts, and what kind."""
Part = Sampler | Term | Weighting | ServerRule | Sharing


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """The parts of a federated algorithm. Parts are frozen; ``replace`` makes a new algorithm from an old one.

    >>> from dataclasses import replace
    >>> from fedatlas import Algorithm, SGD
    >>> replace(Algorithm(name="fedavg"), optimizer=SGD(lr=0.1)).optimizer.lr
    0.1
    """

    name: str
    sampler: Sampler = Uniform()
    """Who takes part."""
    objective: tuple[Term, ...] = (CrossEntropy(),)
    """What each client minimises: a sum."""
    weighting: tuple[Weighting, ...] = (ByExamples(),)
    """How much each client counts: a chain, normalised after its last link."""
    server: tuple[ServerRule, ...] = ()
    """How the weighted change becomes the applied change: a chain."""
    split: Split = ShareAll()
    """Which parameters stay with their client."""
    sharing: Sharing = One()
    """Which clients share a model."""
    optimizer: LocalOptimizer = SGD()
    """How a client steps."""
    extensions: tuple[Extension, ...] = ()
    """What the algorithm builds around the user's model, innermost first."""

    def __post_init__(self) -> None:
        _check_parts(self)
        for slot in ("objective", "weighting", "server"):
            names = [part.name for part in getattr(self, slot)]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise UsageError(
                    f"{self.name}: two parts of its {slot} are named {twice[0]!r}; names must differ.",
                    code="name-repeated",
                    got=twice[0],
                )
        if not self.objective:
            raise UsageError(
                f"{self.name}: the objective is empty; give it at least one term.",
                code="part-missing",
                part="objective",
            )

    def with_terms(self, *terms: Term) -> Algorithm:
        """Return the algorithm with more summands in its objective."""
        return replace(self, objective=(*self.objective, *terms))

    def with_rules(self, *rules: ServerRule) -> Algorithm:
        """Return the algorithm with more server rules at the end of its chain."""
        return replace(self, server=(*self.server, *rules))

    def with_weighting(self, *weightings: Weighting) -> Algorithm:
        """Return the algorithm with more links at the end of its weighting chain."""
        return replace(self, weighting=(*self.weighting, *weightings))

    def with_optimizer(self, optimizer: LocalOptimizer) -> Algorithm:
        """Return the algorithm over another base optimizer; FedSAM, for example, keeps its perturbation."""
        expect(optimizer, LocalOptimizer, "optimizer must be one of fedatlas's", OPTIMIZER)
        return replace(self, optimizer=self.optimizer.rebased(optimizer))

    def with_buffers(self, buffers: Buffers) -> Algorithm:
        """Return the algorithm with another policy for running statistics."""
        return replace(self, split=replace(self.split, buffers=buffers))

    def counting_equally(self) -> Algorithm:
        """Return the algorithm with every client counted the same where it counted them by their examples."""
        links = (Equal() if isinstance(link, ByExamples) else link for link in self.weighting)
        return replace(self, weighting=tuple(links))

    @property
    def surveys(self) -> bool:
        """Whether clients are asked before each round's training."""
        return any(term.surveys for term in self.objective)

    def server_parts(self) -> Iterator[tuple[str, Sampler | Sharing | Weighting | ServerRule]]:
        """Yield the parts that remember on the server, each with the key of its memory."""
        yield f"sampler/{self.sampler.name}", self.sampler
        if type(self.sharing) is not One:
            yield f"sharing/{self.sharing.name}", self.sharing
        yield from self.group_parts()

    def group_parts(self) -> Iterator[tuple[str, Weighting | ServerRule]]:
        """Yield the parts that remember for each group of clients by itself, each with the key of its memory."""
        for link in self.weighting:
            yield f"weighting/{link.name}", link
        for rule in self.server:
            yield f"server/{rule.name}", rule

    def parts(self) -> Iterator[Part]:
        """Yield the parts that may ask something of a client."""
        yield from self.objective
        yield from (part for _, part in self.server_parts())

    def check_clients(self, federation: Federation) -> list[str]:
        """Return the parts' remarks about the clients, each once."""
        return list(dict.fromkeys(line for part in self.parts() for line in part.check_clients(federation)))

    def disclosures(self) -> list[Disclosure]:
        """Return what leaves a client beyond its number of examples and the model's change."""
        return list(dict.fromkeys(disclosure for part in self.parts() for disclosure in part.discloses))

    def extend(self, model: nn.Module) -> nn.Module:
        """Return the model with the algorithm's extensions around it."""
        for extension in self.extensions:
            model = extension.extend(model)
        return model

    def bake(self, network: nn.Module) -> nn.Module:
        """Return a copy for inference of the extended network that holds one client's values."""
        network = copy.deepcopy(network)
        for extension in reversed(self.extensions):
            network = extension.bake(network)
        return network

    def describe(self) -> dict[str, Any]:
        """Return all parts and hyper-parameters as plain values, for the record and for comparing."""
        found = {field.name: plain(getattr(self, field.name)) for field in fields(self)}
        if self.sharing == One():
            del found["sharing"]
        return found


def _check_parts(algorithm: Algorithm) -> None:
    """Raise UsageError if a part is not of its slot's kind, or has no name."""
    who = algorithm.name
    for slot, kind in ONE.items():
        do = OPTIMIZER if slot == "optimizer" else f"Make it one: class Mine({kind.__name__}), then {slot}=Mine()."
        expect(getattr(algorithm, slot), kind, f"{who}: {slot} must be a {kind.__name__}", do)
    for slot, kind in SEVERAL.items():
        do = f"Write {slot}=(part,) with the comma, or {slot}=(one, other)."
        expect(getattr(algorithm, slot), (tuple, list), f"{who}: {slot} must be a tuple of parts", do)
        do = f"Make it one: class Mine({kind.__name__}), then Mine() in the tuple."
        for part in getattr(algorithm, slot):
            expect(part, kind, f"{who}: each part of {slot} must be a {kind.__name__}", do)
    for part in (algorithm.sampler, algorithm.sharing, *algorithm.objective, *algorithm.weighting, *algorithm.server):
        title = type(part).__name__
        do = f'Write `name: ClassVar[str] = "{title.lower()}"` in class {title}: it is the key of its memory.'
        expect(getattr(part, "name", None), str, f"{who}: {title} must have a name", do)
