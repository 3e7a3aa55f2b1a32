"""An algorithm: sampling, objective, weights, combination, server rules, and who shares which parameters."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import nn

from fedatlas.data.federation import Federation
from fedatlas.data.task import require_classes
from fedatlas.errors import UsageError, expect
from fedatlas.models.registry import USUAL_MODELS
from fedatlas.parts.combination import Combination
from fedatlas.parts.disclosure import Disclosure
from fedatlas.parts.extension import Extension
from fedatlas.parts.objective import CrossEntropy, Term
from fedatlas.parts.optimizer import SGD, LocalOptimizer, Wrapper
from fedatlas.parts.part import plain
from fedatlas.parts.sampler import Poisson, Sampler, Uniform
from fedatlas.parts.server_rule import ServerRule
from fedatlas.parts.sharing import One, Sharing
from fedatlas.parts.split import Buffers, ShareAll, Split
from fedatlas.parts.weighting import ByExamples, Equal, Weighting

OPTIMIZER = "Write fedatlas.SGD(lr=0.05) or fedatlas.Adam(lr=0.001)."
ONE: dict[str, type] = {"sampler": Sampler, "split": Split, "sharing": Sharing, "optimizer": LocalOptimizer}
SEVERAL: dict[str, type] = {"objective": Term, "weighting": Weighting, "combination": Combination}
SEVERAL |= {"server": ServerRule, "extensions": Extension}
"""The slots that hold one part, or a tuple of parts, and what kind."""
Part = Sampler | Term | Weighting | Combination | ServerRule | Sharing


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
    combination: tuple[Combination, ...] = ()
    """How the clients' changes become one: a chain. Without one, it is their weighted mean."""
    server: tuple[ServerRule, ...] = ()
    """How this change becomes the applied change: a chain."""
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
        for slot in ("objective", "weighting", "combination", "server"):
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
        _check_together(self)

    def with_terms(self, *terms: Term) -> Algorithm:
        """Return the algorithm with more summands in its objective."""
        return replace(self, objective=(*self.objective, *terms))

    def with_rules(self, *rules: ServerRule) -> Algorithm:
        """Return the algorithm with more server rules at the end of its chain."""
        return replace(self, server=(*self.server, *rules))

    def with_weighting(self, *weightings: Weighting) -> Algorithm:
        """Return the algorithm with more links at the end of its weighting chain."""
        return replace(self, weighting=(*self.weighting, *weightings))

    def with_combination(self, *links: Combination) -> Algorithm:
        """Return the algorithm with more links at the end of its combination."""
        return replace(self, combination=(*self.combination, *links))

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

    def counting_by_examples(self) -> Algorithm:
        """Return the algorithm with every client counted by its examples where it counted all the same.

        An algorithm whose sampler needs equal weights stays as it is.
        """
        if self.sampler.needs_equal_weights:
            return self
        links = (ByExamples() if isinstance(link, Equal) else link for link in self.weighting)
        return replace(self, weighting=tuple(links))

    @property
    def surveys(self) -> bool:
        """Whether clients are asked before each round's training."""
        return any(term.surveys for term in self.objective)

    @property
    def private(self) -> bool:
        """Whether it promises differential privacy."""
        return any(link.private for link in self.combination)

    def server_parts(self) -> Iterator[tuple[str, Sampler | Sharing | Weighting | Combination | ServerRule]]:
        """Yield the parts that remember on the server, each with the key of its memory."""
        yield f"sampler/{self.sampler.name}", self.sampler
        if type(self.sharing) is not One:
            yield f"sharing/{self.sharing.name}", self.sharing
        yield from self.group_parts()

    def group_parts(self) -> Iterator[tuple[str, Weighting | Combination | ServerRule]]:
        """Yield the parts that remember for each group of clients by itself, each with the key of its memory."""
        for link in self.weighting:
            yield f"weighting/{link.name}", link
        for one in self.combination:
            yield f"combination/{one.name}", one
        for rule in self.server:
            yield f"server/{rule.name}", rule

    def parts(self) -> Iterator[Part]:
        """Yield the parts that may ask something of a client."""
        yield from self.objective
        yield from (part for _, part in self.server_parts())

    def check_clients(self, federation: Federation) -> list[str]:
        """Return the parts' remarks about the clients, each once."""
        for part in self.parts():
            if part.needs_classes:
                require_classes(federation.data.task, f"{self.name} ({type(part).__name__})")
        found = [line for part in self.parts() for line in part.check_clients(federation)]
        return list(dict.fromkeys([*found, *_past_the_combination(self)]))

    def usual_model(self, kind: str) -> tuple[str, dict[str, Any]]:
        """Return the name and options of the model to train unless one is named, for a kind of data."""
        choices = [*(term.models for term in self.objective), self.split.models]
        choices += [extension.models for extension in self.extensions]
        for name, options in (models[kind] for models in choices if kind in models):
            return name, dict(options)
        return USUAL_MODELS.get(kind, "cnn"), {}

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
        if not self.combination:
            del found["combination"]
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
    remembering = (part for _, part in algorithm.server_parts())
    for part in (algorithm.sharing, *algorithm.objective, *remembering):
        title = type(part).__name__
        do = f'Write `name: ClassVar[str] = "{title.lower()}"` in class {title}: it is the key of its memory.'
        expect(getattr(part, "name", None), str, f"{who}: {title} must have a name", do)


def _check_together(algorithm: Algorithm) -> None:
    """Raise UsageError if two parts would make each other wrong without a word."""
    _check_weights(algorithm)
    _check_rules(algorithm)
    _check_optimizer(algorithm)
    _check_combination(algorithm)


def _check_weights(algorithm: Algorithm) -> None:
    """Raise UsageError if answers are weighed whose draws are weighted already."""
    if not algorithm.sampler.needs_equal_weights:
        return
    for link in algorithm.weighting:
        if not isinstance(link, Equal):
            sampler, title = type(algorithm.sampler).__name__, type(link).__name__
            raise UsageError(
                f"{algorithm.name}: {sampler} draws clients in proportion to what they count, so each draw must count "
                f"the same, but {title} weighs the answers. Use Equal() as the only weighting, or another sampler.",
                code="base-unfit",
                base=algorithm.name,
                part=title,
            )


def _check_rules(algorithm: Algorithm) -> None:
    """Raise UsageError if a server rule drops the work of one before it."""
    earlier: list[str] = []
    for rule in algorithm.server:
        title = type(rule).__name__
        if rule.ignores_weights and earlier:
            raise UsageError(
                f"{algorithm.name}: {title} begins from the clients' own changes, so the work of {earlier[0]} "
                f"before it would be lost. Put {title} first.",
                code="settings-conflict",
                part=title,
                got=earlier[0],
            )
        if not rule.leaves_change and type(rule).apply is not ServerRule.apply:
            earlier.append(title)


def _check_optimizer(algorithm: Algorithm) -> None:
    """Raise UsageError if a term needs plain SGD and the clients step otherwise."""
    needy = next((type(term).__name__ for term in algorithm.objective if term.needs_plain_sgd), None)
    if needy is None:
        return
    optimizer = algorithm.optimizer
    while isinstance(optimizer, Wrapper):
        optimizer = optimizer.base
    if not isinstance(optimizer, SGD):
        raise UsageError(
            f"{algorithm.name}: {needy} needs SGD without momentum on the clients, got {type(optimizer).__name__}; "
            "use SGD(lr=...).",
            code="wrong-type",
            got=type(optimizer).__name__,
        )
    if optimizer.momentum:
        raise UsageError(
            f"{algorithm.name}: {needy} needs SGD without momentum on the clients, got momentum={optimizer.momentum}.",
            code="settings-conflict",
            got=optimizer.momentum,
        )


def _check_combination(algorithm: Algorithm) -> None:
    """Raise UsageError if a part would undo or bypass what a link of the combination promises."""
    for link in algorithm.combination[:-1]:
        if link.ends:
            last = type(algorithm.combination[-1]).__name__
            raise _unfit(algorithm, link, f"makes one change of all, so {last} after it has nothing to work on")
    for link in algorithm.combination:
        found = (*_passed(algorithm), *_deaf(algorithm, link), *(_open(algorithm) if link.private else ()))
        for fault in found:
            raise _unfit(algorithm, link, fault)
    for bound in algorithm.weighting:
        for fault in _passed(algorithm) if bound.bounds else ():
            raise _unfit(algorithm, bound, fault)


def _past_the_combination(algorithm: Algorithm) -> list[str]:
    """Return a remark about what clients send that no link of the combination sees."""
    if not algorithm.combination:
        return []
    links = ", ".join(type(link).__name__ for link in algorithm.combination)
    reading = [type(part).__name__ for part in (algorithm.sampler, algorithm.sharing) if part.reads_uploads]
    found = [
        f"{algorithm.name}: {title} looks at each client's own change, before {links}; a client that lies is not held "
        "back there."
        for title in reading
    ]
    asking: Sequence[Term | Weighting | ServerRule] = (*algorithm.objective, *algorithm.weighting, *algorithm.server)
    parts = dict.fromkeys(
        type(part).__name__ for part in asking if any(own.when in ("survey", "upload") for own in part.discloses)
    )
    if parts:
        found.append(
            f"{algorithm.name}: {links} sees the clients' changes, but not what {', '.join(parts)} takes from clients "
            "beside them; a client that lies there is not held back."
        )
    return found


def _passed(algorithm: Algorithm) -> Iterator[str]:
    """Yield which server rules take single clients' changes past a part that should see them first."""
    for rule in algorithm.server:
        title = type(rule).__name__
        if rule.ignores_weights:
            yield f"has no effect: the server rule {title} adds up the clients' changes itself"
        elif rule.reads_uploads:
            yield f"would be passed by: the server rule {title} also adds each client's own change to the model"


def _deaf(algorithm: Algorithm, link: Combination) -> Iterator[str]:
    """Yield which parts have no effect, or a wrong one, beside a link."""
    if not link.ignores_weights:
        return
    for weighting in algorithm.weighting:
        if type(weighting) not in (ByExamples, Equal):
            yield f"counts every client the same, so {type(weighting).__name__} has no effect"
    if algorithm.sampler.needs_equal_weights:
        drawn = type(algorithm.sampler).__name__
        yield f"counts every client once, but {drawn} draws some twice, who must count twice"


def _open(algorithm: Algorithm) -> Iterator[str]:
    """Yield what would leave a client beside the noisy sum, or change its sensitivity."""
    for link in algorithm.combination:
        if not link.private:
            yield f"needs each client's own change, and {type(link).__name__} makes it depend on the others'"
    if type(algorithm.sampler) is not Poisson:
        drawn = type(algorithm.sampler).__name__
        yield f"states a privacy that needs Poisson sampling, and {drawn} draws otherwise"
    if type(algorithm.sharing) is not One:
        shared = type(algorithm.sharing).__name__
        yield f"protects one model of all clients, and {shared} makes groups of them"
    if algorithm.split.buffers == "average":
        yield "adds no noise to running statistics, which buffers='average' sends; set buffers to 'none' or 'keep'"
    for own in algorithm.disclosures():
        if own.when != "hello":
            yield f"adds no noise to what else leaves a client here: {own.row()[0]} ({own.why})"


def _unfit(algorithm: Algorithm, link: Weighting | Combination, fault: str) -> UsageError:
    title = type(link).__name__
    return UsageError(
        f"{algorithm.name}: its {title} {fault}. Use another base, or leave {title} out.",
        code="base-unfit",
        base=algorithm.name,
        part=title,
    )
