"""A client means harm: what it sends goes past a clip, past noise, or past a defence, whatever the base algorithm."""

import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from fedatlas.algorithms import build_algorithm
from fedatlas.engines import Simulator
from fedatlas.errors import UsageError
from fedatlas.parts import SGD, Algorithm, Assignment, ServerState, Upload, add
from fedatlas.training import initial_state, play
from tiny import Norms, blob_federation

pytestmark = pytest.mark.attack("a client means harm")

CLIP = 1e-3
BASES = ("fedavg", "fedavgm", "fedprox", "feddyn", "fedper", "fedbn", "fedpce", "fedsam", "moon", "fedlc")
REFUSED = ("feddyn", "qffl")
ROBUST = ("krum", "multi_krum", "median", "trimmed_mean", "clipped")


class Lying(Simulator):
    """Clients of which one may send its change, or its running statistics, times a million."""

    what, liar = "", 0

    def train(self, assignments: Sequence[Assignment]) -> Iterator[Upload]:
        for upload in super().train(assignments):
            if upload.client == self.liar and self.what:
                lie = {name: 1e6 * tensor for name, tensor in getattr(upload, self.what).items()}
                upload = replace(upload, **{self.what: lie})
            yield upload


def _states(algorithm: Algorithm, *, rounds: int, lie: str = "", liar: int = 0) -> list[ServerState]:
    """Return the server's state before the first round and after each."""
    with Lying(algorithm, algorithm.extend(Norms()), blob_federation(), workers=1, engine="loop") as clients:
        clients.what, clients.liar = lie, liar
        first = initial_state(algorithm, clients)
        return [first, *(found.state for found in play(algorithm, clients, rounds=rounds, state=first))]


def _distance(one: ServerState, other: ServerState) -> float:
    found = [add(own, others, -1.0) for own, others in ((one.shared, other.shared), (one.buffers, other.buffers))]
    return sum(float(t.double().square().sum()) for tensors in found for t in tensors.values()) ** 0.5


def _built(part: str, base: str, **options: float) -> Algorithm | None:
    """Return a part over a base, None if it is refused."""
    try:
        return build_algorithm(part, base=base, **options).with_optimizer(SGD(lr=0.1))
    except UsageError as error:
        if error.code == "base-unfit" and base in REFUSED:
            return None
        raise


@pytest.mark.parametrize("base", BASES)
def test_no_base_moves_a_private_model_by_more_than_the_clip(base: str) -> None:
    """Without noise, so that the clip is seen. FedAvgM's momentum of 0.9 adds up to ten rounds' clips."""
    algorithm = _built("dp_fedavg", base, noise=0.0, clip=CLIP)
    if algorithm is None:
        return
    bound = 10 * CLIP if base == "fedavgm" else CLIP
    for before, after in pairwise(_states(algorithm, rounds=3)):
        assert 0 < _distance(before, after) <= bound * 1.001


@pytest.mark.parametrize(
    "base", ["fedavg", "fedavgm", "feddyn", "fedper", "fedbn", "moon", "qffl", "scaffold", "fediir"]
)
@pytest.mark.parametrize("part", ROBUST)
def test_one_liar_of_six_does_not_move_a_defended_model(part: str, base: str) -> None:
    """A base that would let the liar past the defence is refused."""
    algorithm = _built(part, base)
    if algorithm is None:
        return
    honest, *_, last = _states(algorithm, rounds=2)
    bound = 10 * _distance(honest, last)
    # Who lies matters only where some are left out as a whole.
    for lie, liar in (("change", 0), *(("buffers", client) for client in range(6 if "krum" in part else 1))):
        first, *_, last = _states(algorithm, rounds=1, lie=lie, liar=liar)
        assert _distance(first, last) < bound


def _limits() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["0.001", "1e-4", "1e-160", "1e160"])
def test_a_noise_that_hangs_or_fills_the_memory_ends_in_one_line(noise: str, tmp_path: Path) -> None:
    command = f"train --data digits --algorithm dp_fedavg --set training.cohort=5 --set algorithm.noise={noise}"
    done = subprocess.run(
        [sys.executable, "-m", "fedatlas", *command.split(), "--set", "training.rounds=1", "--folder", "run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=_limits,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "NoisySum(noise) must be 0 for none" in " ".join(done.stderr.split())
    assert not (tmp_path / "run" / "rounds.jsonl").exists()
