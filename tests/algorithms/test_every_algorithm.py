from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from fedatlas import check_algorithm
from fedatlas.algorithms import ALGORITHMS, build_algorithm, fedavg, standalone
from fedatlas.algorithms.fedavgm import Momentum, fedavgm
from fedatlas.algorithms.fedbn import KeepNorms
from fedatlas.algorithms.feddyn import DynamicPull, feddyn
from fedatlas.algorithms.fediir import MeanHeadGradient, fediir
from fedatlas.algorithms.fedper import KeepHead
from fedatlas.algorithms.moon import ModelContrast, moon
from fedatlas.client import LocalWork
from fedatlas.models import build_model
from fedatlas.parts import SGD, Algorithm, ByGroup, Equal, Level, ServerState, Split
from fedatlas.testing import Kind
from tiny import Norms, blob_federation, play, same_bits

NEEDS_PROMPTS = {name for name in ALGORITHMS if ALGORITHMS.facts(name).get("model") == "prompted_vit"}
NEEDS_IMAGES = {"harmofl", *NEEDS_PROMPTS}
PRIVATE = {"dp_fedavg"}
"""What refuses groups and averaged running statistics: noise does not cover these."""

EQUAL = replace(fedavg(), weighting=(Equal(),))
SWITCHED_OFF: Mapping[str, tuple[dict[str, Any], Algorithm]] = {
    "fedavgm": ({"beta": 0.0}, fedavg()),
    "fedprox": ({"mu": 0.0}, fedavg()),
    "moon": ({"mu": 0.0}, fedavg()),
    "fedlc": ({"tau": 0.0}, fedavg()),
    "fediir": ({"penalty": 0.0}, EQUAL),
    "feddisco": ({"a": 0.0, "b": 0.0}, fedavg()),
    "qffl": ({"q": 0.0}, EQUAL),
    "afl": ({"lambda_lr": 0.0}, EQUAL),
    "term": ({"t": 0.0}, fedavg()),
    "fedsam": ({"rho": 0.0}, fedavg()),
    "fedmix": ({"lam": 0.0}, fedavg()),
    "fedgr": ({"q": -1.0}, fedavg()),
    "clipped": ({"times": 1e9}, fedavg()),
}
"""Options that leave nothing of an algorithm but its base, and that base."""
NO_SWITCH = {
    "client2vec": "it needs an atlas; without a use of it, it is the base",
    "grouped": "it needs an atlas; with one group it is the base",
    "ifca": "its parameters are those of groups; with one group it is the base",
    "cfl": "its parameters are those of groups; until the first split it is the base",
    "fedavg": "it is the base",
    "feddyn": "alpha must be above 0: the drift is in units of it",
    "scaffold": "it has no weight; without its control variates, as in its first round, it is the base",
    "clustered": "it samples otherwise; with equal sizes and all clients it is the base",
    "harmofl": "it normalises the images whatever its settings",
    "fedper": "a split has no weight",
    "local": "a split has no weight",
    "fedbn": "a split has no weight",
    "fedpce": "its norms are made from the embedding whatever its settings",
    "fedgc": "GC-Net stays whatever its settings; without weights it is the base over that model",
    "fedgcr": "as fedgc",
    "capped": "with clients of like sizes it is the base already",
    "median": "it has no weight; of clients that agree it is the mean",
    "trimmed_mean": "with nothing trimmed it is the mean of equal weights, added in another order",
    "krum": "it has no weight; with one client a round it is the base",
    "multi_krum": "without attackers it keeps all, but adds them up under equal weights",
    "dp_fedavg": "its sum is divided after it is added up, so without noise it is the base but for rounding",
}


def prompted() -> nn.Module:
    options = {"weights": "untrained", "width": 8, "depth": 1, "heads": 2}
    return build_model("prompted_vit", num_classes=3, input_shape=(3, 8, 8), **options)


@pytest.mark.parametrize("name", standalone())
def test_every_algorithm_keeps_its_promises(name: str) -> None:
    model = prompted if name in NEEDS_PROMPTS else None
    check_algorithm(build_algorithm(name), kind="images" if name in NEEDS_IMAGES else "features", model=model)


def test_who_reads_single_uploads_past_a_combination_is_known() -> None:
    """Of the others, the test above shows that they do not."""
    reading = {
        (name, type(rule).__name__)
        for name in standalone()
        for rule in build_algorithm(name).server
        if rule.reads_uploads or rule.ignores_weights
    }
    assert reading == {("feddyn", "DynamicDrift"), ("qffl", "FairStep")}


@pytest.mark.parametrize("name", ["clustered", "feddisco", "median"])
@pytest.mark.parametrize("base", ["scaffold", "moon", "fediir"])
def test_a_composed_algorithm_keeps_its_promises(name: str, base: str) -> None:
    check_algorithm(build_algorithm(name, base=base))


def test_an_algorithm_whose_clients_remember_keeps_its_promises() -> None:
    optimizer = SGD(lr=0.05, momentum=0.9, keep_state=True)
    check_algorithm(fedavg().with_optimizer(optimizer).with_buffers("keep"), kind="images")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        (name, split)
        for name in sorted(set(standalone()) - NEEDS_IMAGES - PRIVATE)
        for split in (KeepHead(), KeepNorms(), Split(buffers="keep"))
        if (name, split) != ("fediir", KeepHead())  # compares gradients of one classifier
    ],
)
def test_every_algorithm_works_with_what_stays_home(name: str, split: Split) -> None:
    algorithm = replace(build_algorithm(name), split=split)
    state, records, _ = play(algorithm, Norms(), blob_federation(num_clients=5, held_out=1), rounds=2, cohort=2)
    assert all(bool(tensor.isfinite().all()) for tensor in state.shared.values())
    assert len(records[-1].losses) > 0


def test_every_algorithm_says_how_it_is_switched_off() -> None:
    """A new one goes into SWITCHED_OFF with the options that leave its base, or into NO_SWITCH with the reason."""
    assert not SWITCHED_OFF.keys() & NO_SWITCH.keys()
    assert sorted(ALGORITHMS.keys() - SWITCHED_OFF.keys() - NO_SWITCH.keys()) == []


def _three_rounds(algorithm: Algorithm) -> ServerState:
    federation = blob_federation(num_clients=6, held_out=1)
    work = LocalWork(epochs=2, batch_size=8)
    state, _, _ = play(algorithm, Norms(), federation, rounds=3, cohort=3, work=work)
    return state


@pytest.mark.parametrize("name", SWITCHED_OFF)
def test_an_algorithm_switched_off_is_its_base_bit_for_bit(name: str) -> None:
    options, base = SWITCHED_OFF[name]
    expected, state = _three_rounds(base), _three_rounds(build_algorithm(name, **options))
    assert same_bits(state.shared, expected.shared)
    assert same_bits(state.buffers, expected.buffers)


@pytest.mark.parametrize("name", SWITCHED_OFF)
def test_an_algorithm_switched_on_is_not_its_base(name: str) -> None:
    _, base = SWITCHED_OFF[name]
    assert not same_bits(_three_rounds(build_algorithm(name)).shared, _three_rounds(base).shared)


def test_the_first_round_of_scaffold_is_its_base_bit_for_bit() -> None:
    expected, _, _ = play(EQUAL, Norms(), blob_federation())
    state, _, _ = play(build_algorithm("scaffold"), Norms(), blob_federation())
    assert same_bits(state.shared, expected.shared)


def test_recipes_have_their_papers_settings() -> None:
    """FedDyn's and FedAvgM's papers, MOON's code, FedIIR's: who gives no numbers gets theirs."""
    assert feddyn().objective[-1] == DynamicPull(alpha=0.01)
    assert fedavgm().server == (Momentum(beta=0.9),)
    assert fediir().server == (MeanHeadGradient(ema=0.95),)
    assert moon().objective[-1] == ModelContrast(mu=1.0, tau=0.5)


def in_groups(algorithm: Algorithm, level: Level = "all") -> Algorithm:
    """Return the algorithm for three groups of the tiny federation; its last client is held out and in none."""
    groups = {f"client-{i}": i % 3 for i in range(7)}
    return replace(algorithm, sharing=ByGroup(groups=groups, level=level))


@pytest.mark.parametrize("name", sorted(set(standalone()) - PRIVATE))
def test_every_algorithm_keeps_its_promises_in_groups(name: str) -> None:
    model = prompted if name in NEEDS_PROMPTS else None
    kind: Kind = "images" if name in NEEDS_IMAGES else "features"
    check_algorithm(in_groups(build_algorithm(name)), kind=kind, model=model)


@pytest.mark.parametrize("level", ["head", "norms"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddyn", "fedavgm", "fediir", "afl", "fedgr", "clipped"])
def test_an_algorithm_keeps_its_promises_where_groups_share_in_part(name: str, level: Level) -> None:
    check_algorithm(in_groups(build_algorithm(name), level))
