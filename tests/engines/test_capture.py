"""The wrapper that captures and replays, with a recorder that runs the function again in place of replaying it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedatlas.engines import capture
from fedatlas.engines.capture import Captured, UncapturableError, enqueued
from tiny import Again

CPU = torch.device("cpu")


def double(value: Tensor, other: Tensor | None = None) -> Tensor:
    return 2 * value if other is None else 2 * value + other


def test_a_kind_of_call_is_captured_at_second_sight_and_replayed_from_its_places() -> None:
    recorder, seen = Again(), []

    def noting(value: Tensor, other: Tensor | None) -> Tensor:
        seen.append(value)
        return double(value, other)

    captured = Captured(recorder, CPU)
    given = [torch.tensor([float(i)]) for i in range(4)]
    assert [captured("kind", (one, None), noting).item() for one in given] == [0, 2, 4, 6]
    assert recorder.captures == 1
    assert seen[0] is given[0]
    assert seen[1] is seen[2] is seen[3]
    assert all(seen[1] is not one for one in given)


def test_the_capture_that_was_not_used_for_longest_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "MOST_GRAPHS", 2)
    recorder = Again()
    captured = Captured(recorder, CPU)

    def call(*kinds: str) -> None:
        for kind in kinds:
            captured(kind, (torch.ones(1),), double)

    call("a", "a", "b", "b", "a", "c", "c")
    assert recorder.captures == 3
    call("a", "c")
    assert recorder.captures == 3
    call("b")
    assert recorder.captures == 4


def test_after_a_refusal_no_other_capture_is_tried_and_what_was_captured_is_replayed() -> None:
    refused: dict[str, int] = {}
    recorder = Again()
    captured = Captured(recorder, CPU, refused)
    for _ in range(3):
        captured("works", (torch.ones(1),), double)
    recorder.works = False
    for _ in range(3):
        assert captured("fails", (torch.ones(1),), double).item() == 2
        assert captured("fails too", (torch.ones(1),), double).item() == 2
    assert refused == {"operation not permitted when stream is capturing": 1}
    assert captured.find("works") is not None
    assert captured.find("fails") is None


def test_without_a_list_of_refusals_the_error_is_raised() -> None:
    class Refusing(Again):
        def capture(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
            raise UncapturableError("cannot", code="uncapturable")

    captured = Captured(Refusing(), CPU)
    captured("kind", (torch.ones(1),), double)
    with pytest.raises(UncapturableError):
        captured("kind", (torch.ones(1),), double)


def test_without_a_recorder_every_call_runs_as_it_is() -> None:
    captured, seen = Captured(None, CPU), []
    for i in range(3):
        value = torch.tensor(float(i))
        captured("kind", (value,), lambda one: seen.append(one) or one)  # type: ignore[func-returns-value]
        assert seen[-1] is value


def test_work_is_enqueued_between_the_server_s() -> None:
    recorder = Again()
    with enqueued(recorder):
        assert (recorder.began, recorder.ended) == (1, 0)
    assert (recorder.began, recorder.ended) == (1, 1)
    with enqueued(None):
        pass
