"""A data set: examples held once, as arrays, with what is known about each."""

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedatlas.data.preparation import Preparation
from fedatlas.data.table import Table
from fedatlas.data.task import CLASSIFICATION, Task
from fedatlas.errors import DataError, UsageError, printable, unknown_name

DTYPES = {"image": torch.uint8, "tokens": torch.int64, "features": torch.float32, "array": torch.float32}
"""Of the inputs, by their kind."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Examples held once, as arrays.

    ``inputs`` is one of: uint8 images (N, channels, height, width); int64 tokens (N, length);
    float32 features (N, width); float32 arrays of more axes, such as float images, signals and volumes.
    """

    name: str
    inputs: Tensor
    labels: Tensor
    """The targets. Of classification int64 (N,), each in [0, len(classes)); ``task`` says the form of others."""
    classes: tuple[str, ...]
    """The names of the classes, labels or numbers that a model predicts."""
    domains: tuple[str, ...] = ()
    domain: Tensor | None = None
    """int64 (N,), an index into ``domains``."""
    owners: tuple[str, ...] = ()
    owner: Tensor | None = None
    """int64 (N,), an index into ``owners``: the natural client of each example."""
    is_test: Tensor | None = None
    """bool (N,), the data set's official test split, where it has one."""
    mean: tuple[float, ...] = field(default=())
    std: tuple[float, ...] = field(default=())
    """Per channel, of images scaled to [0, 1]; () leaves them in [0, 1]."""
    vocabulary: tuple[str, ...] = ()
    """What each token stands for, for text."""
    table: Table | None = None
    """The cells that features were made from, where they came from a table; missing ones are missing there."""
    preparation: Preparation | None = None
    """How the inputs were made from ``table``."""
    remarks: tuple[str, ...] = ()
    """What was found where the data came from, a line each."""
    task: Task = CLASSIFICATION
    """What is to be predicted."""

    def __post_init__(self) -> None:
        check_examples(self.name, self.inputs, self.labels, len(self.classes), self.task)
        for title, names in (("class", self.classes), ("domain", self.domains), ("owner", self.owners)):
            if names != self.vocabulary:  # where every token is a class, one may be the end of a line
                check_printable(self.name, title, names)
        for title, values, names in (("domain", self.domain, self.domains), ("owner", self.owner, self.owners)):
            if values is None:
                continue
            if values.shape != self.labels.shape[:1]:
                raise DataError(
                    f"{self.name}: {len(values)} {title} entries for {len(self)} examples; give one each.",
                    code="wrong-count",
                    what=title,
                    got=len(values),
                    wanted=len(self),
                )
            if len(values) and not 0 <= int(values.min()) <= int(values.max()) < len(names):
                raise DataError(
                    f"{self.name}: {title} must index {len(names)} names, got up to {int(values.max())}.",
                    code="out-of-range",
                    what=title,
                    got=int(values.max()),
                    wanted=len(names),
                )

        if self.table is not None and len(self.table) != len(self):
            raise DataError(
                f"{self.name}: the table has {len(self.table)} rows for {len(self)} examples; give one each.",
                code="wrong-count",
                what="table",
                got=len(self.table),
                wanted=len(self),
            )
        if self.is_test is not None and self.is_test.shape != self.labels.shape[:1]:
            raise DataError(
                f"{self.name}: {len(self.is_test)} is_test entries for {len(self)} examples; give all one.",
                code="wrong-count",
                what="is_test",
                got=len(self.is_test),
                wanted=len(self),
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        parts = [f"{len(self):,} examples, {self.kind} of shape {tuple(self.inputs.shape[1:])}"]
        for title, names in (("classes", self.classes), ("domains", self.domains), ("owners", self.owners)):
            parts += [f"{len(names):,} {title}"] if names else []
        return f"Dataset({self.name!r}, {', '.join(parts)})"

    @property
    def kind(self) -> str:
        """``image``, ``tokens``, ``features`` or ``array``."""
        return input_kind(self.inputs)

    def of_domains(self, names: Sequence[str]) -> "Dataset":
        """Return the examples of some domains only, in the order of the names."""
        if self.domain is None:
            raise UsageError(
                f"{self.name} has no domains to choose from, got {list(names)}.",
                code="domains-missing",
                got=list(names),
            )
        check_domains(self.name, names, self.domains)
        members = [(self.domain == self.domains.index(name)).nonzero()[:, 0] for name in names]
        domain = torch.arange(len(names)).repeat_interleave(torch.tensor([len(own) for own in members]))
        return replace(self.take(torch.cat(members)), domains=tuple(names), domain=domain)

    def take(self, examples: Tensor) -> "Dataset":
        """Return the examples at some positions, in that order; one may be there twice."""

        def part(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[examples.to(values.device)]

        return replace(
            self,
            inputs=self.inputs[examples.to(self.inputs.device)],
            labels=self.labels[examples.to(self.labels.device)],
            domain=part(self.domain),
            owner=part(self.owner),
            is_test=part(self.is_test),
            table=None if self.table is None else self.table.take(examples.cpu().numpy()),
        )

    def prepared(self, preparation: Preparation) -> "Dataset":
        """Return the data with inputs made from its table by this preparation.

        Warn of categories that the preparation of a trained model does not know.
        """
        if self.table is None:
            raise UsageError(
                f"{self.name} has no table of measurements to make inputs from.", code="kind-mismatch", got=self.kind
            )
        inputs = torch.from_numpy(preparation.inputs(self.table)).to(self.inputs.device)
        for column, counts in preparation.unknown(self.table).items() if preparation.fixed else ():
            names = first_few([f"{name!r} ({count} of {len(self)} rows)" for name, count in counts.items()])
            warnings.warn(
                f"{self.name}: column {column!r} has categories that were unknown in training: {names}. They count as "
                "none of the known ones.",
                stacklevel=3,
            )
        return replace(self, inputs=inputs, preparation=preparation)

    def domain_of(self, index: int) -> str | None:
        """Return the name of one example's domain, if it has one."""
        return None if self.domain is None else self.domains[int(self.domain[index])]


def check_domains(data: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raise UsageError if a choice of domains is empty, repeats one or names one that the data set does not have."""
    if not names or len(set(names)) != len(names):
        raise UsageError(
            f"domains must name at least one domain of {data}, each once; got {list(names)}.",
            code="name-repeated",
            got=list(names),
        )
    for name in names:
        if name not in known:
            raise unknown_name("domain", name, known)


def check_printable(data: str, title: str, names: Sequence[str]) -> None:
    """Raise DataError if a name holds characters that steer a terminal or cannot be written."""
    if _unprintable("".join(names)):
        got = next(name for name in names if _unprintable(name))
        raise DataError(
            f"{data}: the {title} {got!r:.80} has characters that cannot be shown, such as the end of a line. Rename "
            "it.",
            code="names-unfit",
            what=title,
            got=got,
        )


def _unprintable(text: str) -> bool:
    return "\n" in text or "\t" in text or printable(text) != text


def first_repeated(names: Sequence[str]) -> str:
    """Return the first of the names that occurs again.

    >>> first_repeated(["a", "b", "c", "b", "a"])
    'a'
    """
    counts = Counter(names)
    return next(name for name in names if counts[name] > 1)


def first_few(names: Sequence[str]) -> str:
    """Return up to three names in a line, for a message.

    >>> first_few(["ann", "bob", "cy", "di"])
    'ann, bob, cy, ...'
    """
    return ", ".join([*names[:3], *(["..."] if len(names) > 3 else [])])


def input_kind(inputs: Tensor) -> str:
    """Return ``image``, ``tokens``, ``features`` or ``array`` from the form of the inputs."""
    if inputs.dtype == torch.uint8 and inputs.ndim == 4:
        return "image"
    if inputs.dtype == torch.int64 and inputs.ndim == 2:
        return "tokens"
    if inputs.dtype == torch.float32 and inputs.ndim == 2:
        return "features"
    if inputs.dtype == torch.float32 and inputs.ndim > 2:
        return "array"
    raise DataError(
        "inputs must be uint8 images (N, channels, height, width), int64 tokens (N, length), float32 features "
        f"(N, width) or float32 arrays of more axes; got {inputs.dtype} of shape {tuple(inputs.shape)}.",
        code="wrong-shape",
        got=inputs.dtype,
        what="inputs",
        shape=tuple(inputs.shape),
    )


def check_examples(name: str, inputs: Tensor, labels: Tensor, num_classes: int, task: Task = CLASSIFICATION) -> None:
    """Raise DataError if examples have a wrong form, NaN, or targets that do not fit the task."""
    input_kind(inputs)
    if len(inputs) != len(labels):
        raise DataError(
            f"{name}: {len(inputs)} inputs but {len(labels)} labels; give one label for each input.",
            code="wrong-count",
            what="labels",
            got=len(labels),
            wanted=len(inputs),
        )
    if len(labels) == 0:
        raise DataError(
            f"{name}: there are no examples. Check the file or the arrays that it comes from.",
            code="data-empty",
            data=name,
        )
    task.check(name, inputs, labels, num_classes)
    check_finite(name, inputs)


def check_finite(name: str, inputs: Tensor) -> None:
    """Raise DataError if inputs hold NaN or infinity."""
    if inputs.is_floating_point() and not all_finite(inputs):
        where = int((~inputs.isfinite()).flatten(1).any(1).nonzero()[0])
        raise DataError(
            f"{name}: inputs hold NaN or infinity, first at example {where}. Clean or drop it.",
            code="not-finite",
            what="inputs",
            example=where,
        )


def renumbered(data: Dataset, classes: Sequence[str], vocabulary: Sequence[str]) -> Dataset:
    """Return the data with labels numbered by these classes, and tokens by this vocabulary; its own must be some."""
    if list(data.vocabulary) != list(vocabulary):
        places = _places(data, "tokens", data.vocabulary, vocabulary)
        data = replace(data, inputs=places[data.inputs], vocabulary=tuple(vocabulary))
    if list(data.classes) != list(classes):
        if not data.task.takes_further and len(data.classes) < len(classes):
            _refuse_missing(data, classes)
        places = _places(data, "classes", data.classes, classes)
        data = replace(data, labels=data.task.renumbered(data.labels, places), classes=tuple(classes))
    return data


def _refuse_missing(data: Dataset, known: Sequence[str]) -> None:
    missing = [name for name in known if name not in data.classes]
    raise DataError(
        f"{data.name} has no targets {missing}, which the run's {list(known)} hold. Add their columns.",
        code="names-unfit",
        what="targets",
        got=list(data.classes),
        known=list(known),
    )


def _places(data: Dataset, what: str, own: Sequence[str], known: Sequence[str]) -> Tensor:
    if strange := [name for name in own if name not in known]:
        named = "Name them as the run does (classes=, in an npz file an array classes), or drop their examples."
        do = named if what == "classes" else "Replace or drop them."
        raise DataError(
            f"{data.name} has the {what} {strange}, which the run's {list(known)} do not hold. {do}",
            code="names-unfit",
            what=what,
            got=strange,
            known=list(known),
        )
    return torch.tensor([list(known).index(name) for name in own], device=data.labels.device)


def all_finite(tensor: Tensor) -> bool:
    """Return whether no value is NaN or infinity, by the ends: value by value takes far longer."""
    return not tensor.numel() or all(bool(end.isfinite()) for end in tensor.aminmax())
