"""What a run's records say about its groups."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fedatlas import train
from fedatlas.algorithms import cfl, fedavg, ifca, scaffold
from fedatlas.engines import Simulator
from fedatlas.parts import Algorithm, Assignment, ByGroup, ByTrial, One, Upload
from fedatlas.runs.group_history import Trial
from fedatlas.runs.run import Run
from fedatlas.testing import state_tensors, tiny_federation
from flower_network import without_held_out
from tiny import same_bits

FEDERATION = without_held_out(tiny_federation())
NAMES = [client.name for client in FEDERATION]
GROUPS = {name: i % 2 for i, name in enumerate(NAMES)}


def trained(algorithm: Algorithm, folder: Path, rounds: int = 10, *, resume: bool = False) -> Run:
    return train(FEDERATION, algorithm, model="mlp", rounds=rounds, folder=folder, progress=False, resume=resume)


def test_one_model_for_all_has_a_history_only_where_somebody_asked(tmp_path: Path) -> None:
    assert trained(fedavg(), tmp_path / "plain", 1).groups is None
    found = trained(replace(fedavg(), sharing=One(reason="They are alike.")), tmp_path / "asked", 1).groups
    assert found is not None
    assert (found.part, found.reason, found.count, found.extra_work) == ("One", "They are alike.", 1, 0.0)
    assert found.served == (dict.fromkeys(NAMES),)
    assert found.describe() == "all clients use one model"


def test_known_groups_serve_from_the_first_round_on(tmp_path: Path) -> None:
    found = trained(replace(fedavg(), sharing=ByGroup(groups=GROUPS, level="head")), tmp_path / "run", 2).groups
    assert found is not None
    assert (found.part, found.level, found.count) == ("ByGroup", "head", 2)
    assert found.members == (tuple(NAMES[::2]), tuple(NAMES[1::2]))
    assert found.served == (GROUPS, GROUPS)
    assert dict(found.trained) == {"groups": 12}
    assert found.describe() == f"2 models are in use ({', '.join(NAMES[::2])}; {', '.join(NAMES[1::2])})"


@pytest.mark.parametrize(("threshold", "left"), [(-1e9, (0, 1)), (1e9, ())])
def test_trials_are_told_with_their_result_and_their_cost(
    threshold: float, left: tuple[int, ...], tmp_path: Path
) -> None:
    """Six clients, ten rounds; round 3 is a trial. If none leaves then, round 7 is another: 12 trainings more each."""
    sharing = ByTrial(groups=GROUPS, pilot=1, threshold=threshold)
    found = trained(replace(fedavg(), sharing=sharing), tmp_path / "run").groups
    assert found is not None
    assert [(trial.round, trial.left) for trial in found.trials] == ([(3, left)] if left else [(3, ()), (7, ())])
    assert all(isinstance(trial, Trial) and len(trial.scores) == 2 for trial in found.trials)
    assert found.served[1] == dict.fromkeys(NAMES)
    assert found.served[-1] == (GROUPS if left else dict.fromkeys(NAMES))
    assert found.count == (2 if left else 1)
    usual = {"common": 18, "rival": 6, "groups": 48} if left else {"common": 60, "rival": 12, "groups": 12}
    assert dict(found.trained) == usual
    assert found.extra_work == pytest.approx(12 / 60 if left else 24 / 60)
    assert found.describe().startswith(
        "2 of 2 left the common model (" if left else "none of 2 left the common model; "
    )
    assert found.describe().endswith(f"clients trained {20 if left else 40}% more often than once a round")


def test_a_group_that_is_apart_is_told(tmp_path: Path) -> None:
    """Of six clients the last is apart: four turns of 6, 6, 5 and 5 clients in the two trials, else 6 in all."""
    sharing = ByTrial(groups={**GROUPS, NAMES[-1]: 2}, pilot=1, threshold=1e9, apart=(2,))
    found = trained(replace(fedavg(), sharing=sharing), tmp_path / "run").groups
    assert found is not None
    assert found.served[0] == found.served[-1] == {**dict.fromkeys(NAMES), NAMES[-1]: 2}
    assert found.count == 2
    assert dict(found.trained) == {"common": 50, "groups": 20, "rival": 10}
    assert found.describe() == (
        f"none of 2 left the common model, 1 never shared it ({NAMES[-1]}); clients trained 33% more often than once a "
        "round"
    )


def test_groups_that_are_found_in_training_are_read_round_by_round(tmp_path: Path) -> None:
    for name, algorithm in (("ifca", ifca(2, seed=2)), ("cfl", cfl(eps1=100.0, eps2=0.0, after=1))):
        run = trained(algorithm, tmp_path / name, 3)
        found = run.groups
        assert found is not None
        assert found.members == ()
        state = run.checkpoint().state
        if name == "ifca":
            assert found.served[-1] == {client: state.group(i) for i, client in enumerate(NAMES)}
        assert found.extra_work == 0


@pytest.mark.parametrize(("stopped_in", "apart"), [(3, ()), (6, ()), (7, ()), (6, (2,))])
def test_ctrl_c_in_a_turn_of_a_trial_resumes_to_the_same_bits(
    stopped_in: int, apart: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes in the second turn, when clients have a new memory of the first one, which does not count yet."""
    groups = {**GROUPS, NAMES[-1]: 2} if apart else GROUPS
    algorithm = replace(scaffold(), sharing=ByTrial(groups=groups, pilot=2, threshold=1e9, apart=apart))
    assert algorithm.sharing.trials(10) == [range(3, 4), range(6, 8)]
    whole = trained(algorithm, tmp_path / "whole")
    train_clients = Simulator.train

    def interrupted(self: Simulator, assignments: Sequence[Assignment]) -> Iterator[Upload]:
        if (assignments[0].round, assignments[0].turn) == (stopped_in, 1):
            raise KeyboardInterrupt
        return train_clients(self, assignments)

    monkeypatch.setattr(Simulator, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained(algorithm, tmp_path / "stopped")
    assert Run(tmp_path / "stopped").checkpoint().state.round == stopped_in - 1
    monkeypatch.setattr(Simulator, "train", train_clients)
    resumed = trained(algorithm, tmp_path / "stopped", resume=True)
    assert same_bits(state_tensors(resumed.checkpoint().state), state_tensors(whole.checkpoint().state))
    for name in ("rounds.jsonl", "clients.jsonl"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
