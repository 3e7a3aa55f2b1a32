"""A step on a CPU, recorded once and replayed: the same kernels in the same order, without what Python does between.

A small network's step is a few dozen small operations, and building the graph of its derivatives costs as much as they
do. The tape notes all operations of a step, those of its derivatives too. A replay runs them again on the same tensors,
in torch's interpreter, and is used only if it gave the recorded step's bits.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fedatlas.engines.capture import UncapturableError

MOST_CALLS = 2000
"""Operations that a recorded step may have."""
MOST_SECONDS = 0.004
"""How long a recorded step may take: in a longer one, Python's share is too small to matter."""
PATIENCE = 50
"""Steps of a kind before it is recorded, times the number of the recording: a recording takes about as long as it saves
in twice so many steps, and a rate that falls every round would need a new one each time."""


class TapeRecorder:
    """Records steps on a CPU; see ``capture.Recorder``."""

    def __init__(self, patience: int = PATIENCE, most_seconds: float = MOST_SECONDS) -> None:
        self._patience, self._most_seconds = patience, most_seconds
        self._read: set[int] = set()
        self._captures = 0

    def stream(self) -> AbstractContextManager[object]:
        """Return the context in which the interpreter runs the operations as written, and optimises nothing."""
        return torch.jit.optimized_execution(False)  # type: ignore[attr-defined]

    def begin(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def room(self) -> bool:
        """Return false: worker processes do what more lanes would."""
        return False

    def worth(self, steps: int, seconds: float) -> bool:
        """Return whether the steps of a kind, taken ``steps`` times in ``seconds``, are quick and many."""
        return steps >= self._patience * (self._captures + 1) and seconds <= self._most_seconds * steps

    def reads(self, place: Tensor) -> bool:
        """Return whether a captured step reads or writes a tensor."""
        return id(place) in self._read

    def capture(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return how to replay a function; each replay returns a new tensor."""
        tape, random = _Tape(), torch.get_rng_state()
        try:
            with tape:
                result = function()
            script, places = tape.script(result), [tensor.detach() for tensor in tape.outside]
            expected = [tensor.clone() for tensor in (*tape.outside, result)]
            tape.rewind()
            torch.set_rng_state(random)
            found = [*places, script(*places)]
            if not all(map(_same, found, expected)):
                raise UncapturableError("a replay on the CPU would not give the same bits", code="uncapturable")
        finally:
            tape.rewind()
            torch.set_rng_state(random)
        self._read |= {id(tensor) for tensor in tape.outside}
        self._captures += 1
        return lambda: script(*places)


_BY_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class _Tape(TorchDispatchMode):
    """Notes operations, the tensors from outside that they read, and the values of those before the step."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[tuple[Any, Any, Any, Any]] = []
        self._made: set[int] = set()
        self._storages: set[int] = set()
        self._before: dict[int, Tensor] = {}
        self.outside: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here; torch would otherwise load its compiler, which takes a second, to make sure.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = pytree.tree_leaves((args, kwargs))
        _check(func, given)
        for value in given:
            if isinstance(value, Tensor) and id(value) not in self._made and id(value) not in self._before:
                if value.untyped_storage()._cdata in self._storages:
                    text = f"{func} reads what the step made, by another way"
                    raise UncapturableError(text, code="uncapturable", got=str(func))
                self._before[id(value)] = value.detach().clone()
                self.outside.append(value)
        result = func(*args, **kwargs)
        if len(self._calls) >= MOST_CALLS:
            text = f"the step is more than {MOST_CALLS} operations"
            raise UncapturableError(text, code="uncapturable", most=MOST_CALLS)
        self._calls.append((func, args, kwargs, result))
        known = {value.untyped_storage()._cdata for value in self.outside}
        for value in pytree.tree_leaves(result):
            if isinstance(value, Tensor) and id(value) not in self._before:
                self._made.add(id(value))
                if value.untyped_storage()._cdata not in known:
                    self._storages.add(value.untyped_storage()._cdata)
        return result

    def rewind(self) -> None:
        """Give the tensors from outside the values that they had before the step."""
        for tensor in self.outside:
            tensor.detach().copy_(self._before[id(tensor)])

    def script(self, result: Tensor) -> Callable[..., Tensor]:
        """Return the operations as a function of the tensors from outside, in their order."""
        names = {id(one): f"place_{i}" for i, one in enumerate(self.outside)}
        lines = [f"def step({', '.join(names.values())}):"]
        for number, (func, args, kwargs, made) in enumerate(self._calls):
            if func is torch.ops.aten.detach.default:  # the same numbers by another name
                names[id(made)] = names[id(args[0])]
                continue
            results = [made] if isinstance(made, Tensor) else list(made or ())
            targets = [f"value_{number}_{i}" for i in range(len(results))]
            lines += [f"    {line}" for line in _lines(func, args, kwargs, targets, isinstance(made, list), names)]
            for target, one in zip(targets, results, strict=True):
                names.setdefault(id(one), target)
        lines.append(f"    return {names[id(result)]}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch recommends its newer interfaces, which take longer to start
            try:
                return torch.jit.CompilationUnit("\n".join(lines) + "\n").step  # type: ignore[no-any-return]
            except RuntimeError as error:
                raise UncapturableError(f"torch.jit cannot run the step: {error}", code="uncapturable") from error


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same bits."""
    first, second = (tensor.reshape(-1).contiguous().view(torch.uint8) for tensor in (one, other))
    return torch.equal(first, second)


def _lines(func: Any, args: Any, kwargs: Any, targets: list[str], listed: bool, names: Mapping[int, str]) -> list[str]:
    """Return a call as TorchScript writes it, with the names that its results get."""
    name = func._schema.name.removeprefix("aten::")
    schema = {one.name: str(one.type) for one in func._schema.arguments}
    given = dict(zip(schema, args, strict=False)) | kwargs
    if name.startswith("_foreach_"):
        # One tensor after another, as the CPU does it: the interpreter does not see that a list's tensors change.
        operation = _ONE_BY_ONE.get(name, name.removeprefix("_foreach_"))
        calls = []
        for i in range(len(args[0])):
            own = {title: value[i] if isinstance(value, list | tuple) else value for title, value in given.items()}
            written = [
                f"{title}={value!r}" if title in ("alpha", "value") else _written(value, "number", names)
                for title, value in own.items()
            ]
            calls.append(f"torch.ops.aten.{operation}({', '.join(written)})")
        return [f"{target} = {call}" for target, call in zip(targets, calls, strict=True)] if targets else calls
    written = [f"{title}={_written(value, schema[title], names)}" for title, value in given.items()]
    call = f"torch.ops.aten.{name}({', '.join(written)})"
    if listed:
        first = targets[0].rpartition("_")[0]
        return [f"{first} = {call}", *(f"{target} = {first}[{i}]" for i, target in enumerate(targets))]
    return [f"{', '.join(targets)} = {call}" if targets else call]


_ONE_BY_ONE = {"_foreach_norm": "linalg_vector_norm"}
"""Operations on lists whose operation on one tensor has another name."""


def _written(value: Any, kind: str, names: Mapping[int, str]) -> str:
    """Return an argument as TorchScript writes it."""
    if isinstance(value, Tensor):
        return names[id(value)]
    if isinstance(value, list | tuple):
        inner = kind.removeprefix("Optional[").removeprefix("List[").removesuffix("]")
        listed = f"[{', '.join(_written(one, inner, names) for one in value)}]"
        return listed if value else f"torch.jit.annotate(List[{inner}], [])"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return str(value) if isinstance(value, torch.dtype | torch.layout | torch.memory_format) else repr(value)


def _check(func: Any, given: list[Any]) -> None:
    """Raise an error if Python looks at an operation's result, or if a replay could not repeat it."""
    picks = func is torch.ops.aten.index.Tensor
    by_mask = picks and any(isinstance(v, Tensor) and v.dtype in (torch.bool, torch.uint8) for v in given[1:])
    if by_mask or (not picks and not _BY_VALUES.isdisjoint(func.tags)):
        text = f"what the step does depends on values: {func}"
        raise UncapturableError(text, code="uncapturable", got=str(func))
    if any(isinstance(value, torch.Generator) for value in given):
        raise UncapturableError(f"{func} draws from its own generator", code="uncapturable", got=str(func))
