"""Clients that are named in a config: left out, or given a model for themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedatlas import Config, federate, load_dataset, train
from fedatlas.algorithms import fedavg, grouped
from fedatlas.data import ByDomain
from fedatlas.errors import UsageError
from fedatlas.report import model_groups
from raising import raises
from tiny import Norms, blob_federation

DIGITS = ByDomain(clients_per_domain=2)


def test_who_is_left_out_takes_no_part_and_the_others_keep_their_examples() -> None:
    data = load_dataset("digits")
    whole = {client.name: client for client in federate(data, DIGITS)}
    rest = federate(data, DIGITS, leave_out=["thin-0", "photo"])
    assert {client.name for client in rest} == whole.keys() - {"thin-0", "photo-0", "photo-1"}
    for client in rest:
        torch.testing.assert_close(client.train, whole[client.name].train)
    assert rest.origin is not None
    assert rest.origin.held_out == "0 (left out: ['thin-0', 'photo'])"
    with raises(UsageError, "unknown-name", got="thin-9"):
        federate(data, DIGITS, leave_out="thin-9")


def test_a_table_s_numbers_are_scaled_without_the_clients_that_are_left_out() -> None:
    config = Config.read(None, ["data.source=heart", 'data.leave_out=["va"]'])
    federation = config.federation()
    assert "va" not in [client.name for client in federation]
    held = Config.read(None, ["data.source=heart", 'data.held_out=["va"]']).federation()
    training = federation.clients[0].train
    torch.testing.assert_close(federation.data.inputs[training], held.data.inputs[held.clients[0].train])


@pytest.mark.parametrize("names", [[["client-0", "client-2"]], [["client-0", "client-2"], ["client-1", "client-3"]]])
def test_named_groups_have_a_model_each_and_the_others_one_more(names: list[list[str]], tmp_path: Path) -> None:
    algorithm = grouped(fedavg(), members=names)
    run = train(blob_federation(4), algorithm, model=Norms(), rounds=1, workers=1, folder=tmp_path / "run")
    assert model_groups(run) == [0, 1, 0, 1]
    one, other = (run.parameters(client)["head.weight"] for client in ("client-0", "client-1"))
    assert not torch.equal(one, other)


def test_a_config_names_groups_without_an_atlas() -> None:
    settings = ['atlas.use=["group"]', 'sharing.members=[["a", "b"]]']
    config = Config.read(None, settings)
    assert config.atlas_settings() is None
    sharing = config.algorithm().describe()["sharing"]
    assert (sharing["part"], sharing["groups"]) == ("NamedGroups", [["a", "b"]])
    with raises(UsageError, "settings-conflict", got="sharing.members"):
        Config.read(None, settings[1:]).algorithm()
    with raises(UsageError, "wrong-type"):
        Config.read(None, [settings[0], 'sharing.members=["a", "b"]'])
    with raises(UsageError, "unknown-name", got="a"):
        config.algorithm().check_clients(blob_federation(3))
    with raises(UsageError, "name-twice", got="a"):
        grouped(members=[["a"], ["a"]])
