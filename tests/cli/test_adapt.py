import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from claims import claim_again
from commands import invoke
from fedatlas.adapting import Adapter, Tuning, load_personalised
from fedatlas.atlas import Atlas, feature_average, label_histogram, make_encoder, place_client
from fedatlas.data import Federation, Iid, federate, load_dataset
from fedatlas.errors import RunFolderError, UsageError
from fedatlas.runs import Run
from raising import raises

FEW = ["--rounds", 2, "--steps", 3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of four algorithms on six clients, of which two were held out, and the arrays of a new client."""
    top = tmp_path_factory.mktemp("adapt")
    rng = np.random.default_rng(0)
    y = np.arange(96) % 3
    x = (rng.uniform(0, 80, (96, 8, 8, 3)) + 80 * y[:, None, None, None]).astype(np.uint8)
    np.savez(top / "mine.npz", x=x, y=y)
    np.savez(top / "newcomer.npz", x=x[:24][:, :, ::-1], y=y[:24])
    for name in ("fedpce", "fedbn", "fedper", "fedavg"):
        settings = ["data.partition={name='iid', num_clients=6}", "data.held_out=2", "training.steps=2"]
        settings += ["model.width=4", "model.norm=instance", "optimizer.lr=0.01"]
        given = [word for setting in settings for word in ("--set", setting)]
        result = invoke("train", "-d", top / "mine.npz", "-a", name, "-m", "cnn", *given, "-r", 1, "-f", top / name)
        assert result.exit_code == 0, result.output
    return top


@pytest.mark.parametrize(("name", "tuned"), [("fedpce", "32"), ("fedbn", "24"), ("fedper", "51"), ("fedavg", "51")])
def test_held_out_clients_are_adapted_and_recorded(folder: Path, name: str, tuned: str) -> None:
    result = invoke("adapt", folder / name, *FEW)
    assert result.exit_code == 0, result.output
    assert len(re.findall(r"^client-\d\d ", result.output, re.M)) >= 2
    records = Run(folder / name).adapted
    assert len(records) == 2
    for record in records:
        assert f"{record['num_tuned']:,}" == tuned
        assert (record["num_steps"], record["bytes_sent"], record["round"]) == (6, 0, 1)
    assert ("their numbers" in result.output) == (name == "fedpce")


def test_an_algorithm_that_keeps_nothing_tunes_its_head_and_shows_how_far_it_is(folder: Path) -> None:
    result = invoke("adapt", folder / "fedavg", *FEW)
    assert result.exit_code == 0, result.output
    assert "adapting: 2 of 2" in result.output
    assert {(record["num_tuned"], record["tune"]) for record in Run(folder / "fedavg").adapted} == {(51, "head")}


def test_ctrl_c_keeps_the_clients_that_were_tuned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Tuning.round

    def stopped(self: Tuning, number: int, personal: Any) -> Any:
        if number == 2:
            raise KeyboardInterrupt
        return real(self, number, personal)

    monkeypatch.setattr(Tuning, "round", stopped)
    result = invoke("adapt", folder / "fedper", *FEW)
    assert result.exit_code == 130, result.output
    assert "clients that were tuned are kept" in result.output
    assert {record["num_steps"] for record in Run(folder / "fedper").adapted} == {3}
    monkeypatch.setattr(Tuning, "round", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    result = invoke("adapt", folder / "fedper", *FEW)
    assert result.exit_code == 130
    assert "Stopped before a client was tuned" in result.output


def test_adapting_a_client_again_replaces_its_record(folder: Path) -> None:
    client = Adapter(Run(folder / "fedper")).held_out[0]
    for steps in (1, 2):
        result = invoke("adapt", folder / "fedper", "--client", client, "--rounds", 1, "--steps", steps)
        assert result.exit_code == 0, result.output
    assert [r["num_steps"] for r in Run(folder / "fedper").adapted if r["client"] == client] == [2]


def test_a_client_named_twice_is_adapted_once(folder: Path) -> None:
    client = Adapter(Run(folder / "fedper")).held_out[0]
    result = invoke("adapt", folder / "fedper", "--client", client, "--client", client, "--no-compare", *FEW)
    assert result.exit_code == 0, result.output
    assert len(re.findall(rf"\b{client}\b", result.output)) == 1


def test_which_is_kept_and_why_is_printed_and_recorded_unless_it_is_not_compared(folder: Path) -> None:
    result = invoke("adapt", folder / "fedavg", *FEW)
    assert result.exit_code == 0, result.output
    lines = " ".join(result.output.split("which was kept")[1].split())
    for record in Run(folder / "fedavg").adapted:
        assert f"in folds of its {record['num_examples']} training examples; the " in record["why"]
        assert f"{record['client']} {record['why']}" in lines
        assert re.search(rf"^{record['client']} .* {record['kept']} ", result.output, re.M)
    result = invoke("adapt", folder / "fedavg", *FEW, "--no-compare")
    assert "which was kept" not in result.output
    assert {(own["kept"], own["why"], own["gain"]) for own in Run(folder / "fedavg").adapted} == {("after", "", None)}


def test_labels_are_not_forbidden_where_no_client_is_placed(folder: Path) -> None:
    result = invoke("adapt", folder / "fedavg", "--no-labels", *FEW)
    assert result.exit_code == 2
    assert "no client is placed here. Leave it out" in " ".join(result.output.split())


def test_a_new_clients_own_file_starts_from_the_nearest_in_an_atlas(folder: Path, tmp_path: Path) -> None:
    run = Adapter(Run(folder / "fedpce"))
    label_histogram(run.federation).save(tmp_path / "atlas.safetensors")
    arguments = ["--data", folder / "newcomer.npz", "--start", "nearest", "--atlas", tmp_path / "atlas.safetensors"]
    result = invoke("adapt", folder / "fedpce", *arguments, *FEW, "--save", tmp_path / "models")
    assert result.exit_code == 0, result.output
    assert "the nearest that trained, client-" in result.output
    network = load_personalised(tmp_path / "models/newcomer.safetensors")
    assert network(torch.rand(2, 3, 8, 8))[1].shape == (2, 3)


def test_a_new_client_is_not_taken_for_a_namesake_in_the_atlas(folder: Path, tmp_path: Path) -> None:
    run = Adapter(Run(folder / "fedpce"))
    label_histogram(run.federation).save(tmp_path / "atlas.safetensors")
    shutil.copy(folder / "newcomer.npz", tmp_path / "client-00.npz")
    arguments = ["--start", "nearest", "--atlas", tmp_path / "atlas.safetensors"]
    result = invoke("adapt", folder / "fedpce", "--data", tmp_path / "client-00.npz", *arguments)
    assert result.exit_code == 2
    assert "client-00: a client of" in " ".join(result.output.split())


def test_networks_stay_in_the_folder_whatever_clients_are_named(folder: Path, tmp_path: Path) -> None:
    with np.load(folder / "newcomer.npz") as arrays:
        owner = np.array(["../up", "ward/3"])[np.arange(24) % 2]
        np.savez(tmp_path / "wards.npz", x=arrays["x"], y=arrays["y"], owner=owner)
    result = invoke("adapt", folder / "fedper", "--data", tmp_path / "wards.npz", *FEW, "--save", tmp_path / "models")
    assert result.exit_code == 0, result.output
    saved = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.safetensors"))
    assert saved == ["models/%2E.%2Fup.safetensors", "models/ward%2F3.safetensors"]


def test_a_network_that_takes_the_place_of_another_runs_says_so(folder: Path, tmp_path: Path) -> None:
    client = Adapter(Run(folder / "fedper")).held_out[0]
    for name in ("fedavg", "fedper"):
        result = invoke("adapt", folder / name, "--client", client, *FEW, "--save", tmp_path / "models")
        assert result.exit_code == 0, result.output
        said = f"network: {tmp_path / 'models' / client}.safetensors"
        assert (said if name == "fedavg" else f"{said} (in place of an earlier one)") in result.output.splitlines()


def test_a_folder_that_cannot_be_made_is_refused_before_tuning(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = invoke("adapt", folder / "fedper", "--save", tmp_path / "file")
    assert result.exit_code == 2
    assert "is a file, and a folder is needed there" in " ".join(result.output.split())
    with raises(RunFolderError, "file-unwritable"):
        Adapter(Run(folder / "fedavg")).adapt_all()[0].save(tmp_path / "file/client.safetensors")


@pytest.mark.filterwarnings("default")
def test_an_unfinished_run_is_adapted_with_a_note_and_one_without_a_checkpoint_refused(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "fedavg", tmp_path / "run")
    resolved = json.loads((tmp_path / "run/resolved.json").read_text())
    resolved["training"]["rounds"] = 9
    (tmp_path / "run/resolved.json").write_text(json.dumps(resolved))
    claim_again(tmp_path / "run")
    result = invoke("adapt", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "is at round 1 of 9: its model is not trained to the end" in " ".join(result.output.split())
    (tmp_path / "run/adapted.json").write_text('{"client": 1}')
    with raises(RunFolderError, "file-altered"):
        Run(tmp_path / "run").adapted  # noqa: B018
    shutil.rmtree(tmp_path / "run/checkpoints")
    result = invoke("adapt", tmp_path / "run")
    assert result.exit_code == 2
    assert "manifest.json is missing" in " ".join(result.output.split())


@pytest.mark.filterwarnings("default")
def test_a_client_of_one_example_is_told_that_nothing_was_tuned(folder: Path, tmp_path: Path) -> None:
    client = Adapter(Run(folder / "fedper")).held_out[0]
    result = invoke("adapt", folder / "fedper", "--client", client, "--examples", 1, *FEW)
    assert result.exit_code == 0, result.output
    assert "nothing was tuned" not in result.output  # instance norms have enough in one image
    settings = ["data.partition={name='iid', num_clients=6}", "data.held_out=2", "model.width=4", "model.norm=batch"]
    given = [word for setting in settings for word in ("--set", setting)]
    made = invoke("train", "-d", folder / "mine.npz", "-a", "fedbn", *given, "-r", 1, "-f", tmp_path / "run")
    assert made.exit_code == 0, made.output
    result = invoke("adapt", tmp_path / "run", "--client", client, "--examples", 1, *FEW)
    assert result.exit_code == 0, result.output
    assert f"nothing was tuned for {client}: with one training example" in " ".join(result.output.split())
    with np.load(folder / "newcomer.npz") as arrays:
        np.savez(tmp_path / "one.npz", x=arrays["x"][:1], y=arrays["y"][:1])
    result = invoke("adapt", folder / "fedper", "--data", tmp_path / "one.npz", *FEW)
    assert result.exit_code == 2
    assert "train on: 1, to test on: 0; adapting needs both. Bring more" in " ".join(result.output.split())


def test_where_each_client_started_is_told_where_it_differs(folder: Path, tmp_path: Path) -> None:
    run = Run(folder / "fedpce")
    vectors = torch.eye(6)[[0, 1, 2, 3, 0, 1]] + 0.01
    names = tuple(client["name"] for client in run.resolved["federation"]["clients"])
    held_out = [client["name"] for client in run.resolved["federation"]["clients"] if client["held_out"]]
    trained = [name for name in names if name not in held_out]
    Atlas(names=(*trained, *held_out), halves={"label": vectors}, sizes=torch.ones(6, dtype=torch.int64)).save(
        tmp_path / "own.safetensors"
    )
    result = invoke("adapt", folder / "fedpce", "--start", "nearest", "--atlas", tmp_path / "own.safetensors", *FEW)
    assert result.exit_code == 0, result.output
    lines = result.output.split("where they started")[1].splitlines()
    for own, nearest in zip(held_out, trained, strict=False):
        assert any(own in line and f"the nearest that trained, {nearest} " in line for line in lines)
    assert "; start:" not in result.output
    assert "; start: as the run" in invoke("adapt", folder / "fedpce", "--start", "unit", *FEW).output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--start", "units"], "unknown start 'units'"),
        (["--tune", "heads"], "unknown choice of what to tune 'heads'"),
        (["--start", "nearest"], "needs atlas= (--atlas FILE)"),
        (["--start", "mean", "--atlas", "atlas.safetensors"], "--atlas is for --start nearest or group only"),
        (["--data-folder", "data"], "give --data NAME"),
        (["--onnx"], "give --save FOLDER"),
        (["--save", __file__], "is a file, and a folder is needed there"),
        (["--client", "client-99"], "unknown client 'client-99'"),
    ],
)
def test_wrong_words_are_named(folder: Path, arguments: list[str], said: str) -> None:
    result = invoke("adapt", folder / "fedpce", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_an_adapted_network_says_the_same_as_onnx(folder: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    onnx = pytest.importorskip("onnx")
    adapter = Adapter(Run(folder / "fedpce"))
    adapted = adapter.adapt(adapter.held_out[0], rounds=1, steps=2)
    path = adapted.export_onnx(tmp_path / "client.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    images = torch.rand(5, 3, 8, 8)
    features, logits = session.run(["features", "logits"], {"inputs": images.numpy()})
    for ours, theirs in zip(adapted.model()(images), (features, logits), strict=True):
        torch.testing.assert_close(torch.from_numpy(theirs), ours, rtol=1e-4, atol=1e-5)
    about = {entry.key: entry.value for entry in onnx.load(path).metadata_props}["fedatlas"]
    assert json.loads(about)["client"] == adapted.client


def test_a_runs_embeddings_are_mapped_from_the_command_line(folder: Path, tmp_path: Path) -> None:
    result = invoke("map", "--run", folder / "fedpce", "--to", tmp_path / "own.safetensors")
    assert result.exit_code == 0, result.output
    assert Atlas.load(tmp_path / "own.safetensors").half().shape == (4, 32)
    assert (tmp_path / "own.html").exists()
    assert "the parameters that it keeps in the run" in result.output
    result = invoke("map", "--run", folder / "fedpce", "--data", "digits", "--to", tmp_path / "own.safetensors")
    assert result.exit_code == 2
    assert "leave out --data, or --run" in " ".join(result.output.split())


def own_client(folder: Path) -> Federation:
    return federate(load_dataset(folder / "newcomer.npz"), Iid(num_clients=1))


def test_a_client_is_placed_where_the_atlas_would_have_put_it(folder: Path) -> None:
    federation = Adapter(Run(folder / "fedpce")).federation
    whole = feature_average(federation, make_encoder("builtin").encode(federation))
    name = federation.clients[4].name
    others = [i for i, own in enumerate(whole.names) if own != name]
    without = Atlas(
        names=tuple(whole.names[i] for i in others),
        halves={"feature": whole.half()[others]},
        sizes=whole.sizes[others],
        provenance=whole.provenance,
    )
    again = place_client(without, federation, name)
    torch.testing.assert_close(again.half()[again.rows([name])], whole.half()[whole.rows([name])])
    assert place_client(whole, federation, name) is whole


def test_an_atlas_of_another_source_or_width_cannot_place_a_client(folder: Path) -> None:
    newcomer = own_client(folder)
    name = newcomer.clients[0].name
    cases = {
        "its source is client2vec": ({"feature": torch.ones(1, 2)}, {"source": "client2vec"}),
        "another width": ({"label": torch.ones(1, 2)}, {"source": "label_histogram"}),
        "its encoder is clip": ({"feature": torch.ones(1, 512)}, {"source": "feature_average", "encoder": "clip"}),
    }
    for said, (halves, provenance) in cases.items():
        atlas = Atlas(names=("a",), halves=halves, sizes=torch.tensor([1]), provenance=provenance)
        with pytest.raises(UsageError, match=said):
            place_client(atlas, newcomer, name)
