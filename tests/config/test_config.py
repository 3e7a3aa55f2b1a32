import inspect
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from fedatlas.algorithms import ALGORITHMS, Proximal
from fedatlas.cli import default_folder
from fedatlas.client import ResidentData
from fedatlas.config.config import Config
from fedatlas.config.listing import settings_lines, settings_table
from fedatlas.config.schema import SETTINGS, TrainingTables
from fedatlas.data import PARTITIONS, federate
from fedatlas.errors import UsageError
from fedatlas.models import MODELS
from fedatlas.parts import OPTIMIZERS, SGD, Adam, Buffers, field_kinds
from raising import raises


def test_later_settings_win_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('seed = 3\n[training]\nrounds = 7\nepochs = 2\n[algorithm]\nname = "fedprox"\nmu = 0.5\n')
    config = Config.load(path, ["training.rounds=9", "algorithm.mu=0.25"], training={"batch_size": 8})
    assert config.plan().rounds == 9
    assert config.work().epochs == 2
    assert config.work().batch_size == 8
    assert config.algorithm().objective[-1].mu == 0.25  # type: ignore[attr-defined]
    assert config.seeds().sampling == 3


def test_a_limit_that_is_switched_off_stays_off_in_a_file() -> None:
    config = Config.load(None, ["flower.most_weight=none"])
    assert config.values["flower"]["most_weight"] is None
    assert Config.from_text(config.to_toml()).values == config.values


def test_a_config_written_as_toml_reads_back_the_same(tmp_path: Path) -> None:
    settings = [
        "data.partition={name = 'dirichlet', num_clients = 5, alpha = 0.1}",
        "optimizer.name=adam",
        "training.cohort=0.5",
    ]
    config = Config.load(None, settings, model={"name": "resnet18", "norm": "group", "width": 8})
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    assert Config.load(path).values == config.values


def test_another_name_drops_the_options_of_the_old_one() -> None:
    config = Config.load(None, ["algorithm.name=fedprox", "algorithm.mu=0.5"], algorithm={"name": "fedavg"})
    assert config.values["algorithm"] == {"name": "fedprox", "mu": 0.5}
    again = Config.load(None, ["algorithm.name=fedavg"], algorithm={"name": "fedprox", "mu": 0.5})
    assert again.values["algorithm"] == {"name": "fedavg"}


def test_the_optimizer_is_built_by_name() -> None:
    assert Config.load().algorithm().optimizer == SGD()
    config = Config.load(None, ["optimizer.name=adam", "optimizer.lr=0.002"])
    assert config.algorithm().optimizer == Adam(lr=0.002)


def test_options_by_algorithm_reach_the_one_that_is_chosen() -> None:
    settings = ["algorithms.fedsam={rho = 0.01}", "algorithms.fedprox.mu=0.3"]
    config = Config.load(None, settings, algorithm={"name": "fedsam"})
    assert config.algorithm().optimizer.rho == 0.01  # type: ignore[attr-defined]
    assert Config.load(None, settings).algorithm().name == "fedavg"
    prox = Config.load(None, [*settings, "algorithm.mu=0.4"], algorithm={"name": "fedprox"}).algorithm()
    assert prox.objective[-1].mu == 0.4  # type: ignore[attr-defined]


def test_augmentation_is_a_table() -> None:
    assert Config.load().work().augment is None
    augment = Config.load(None, ["training.augment={padding = 2, flip = 0.25}"]).work().augment
    assert (augment.padding, augment.flip) == (2, 0.25)  # type: ignore[union-attr]
    with raises(UsageError, "unknown-name", kind="option of augment", got="flipp"):
        Config.load(None, ["training.augment={flipp = 1}"]).work()


def test_one_seed_can_be_set_apart() -> None:
    seeds = Config.load(None, ["seed=4", "seeds.model=9"]).seeds()
    assert (seeds.partition, seeds.model, seeds.sampling, seeds.batches) == (4, 9, 4, 4)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("trainig.rounds=3", r"unknown key .*'trainig'\. Did you mean 'training'"),
        ("training.round=3", r"unknown key .*'round'\. Did you mean 'rounds'"),
        ("algorithm.name=fedproks", r"unknown algorithm 'fedproks'\. Did you mean 'fedprox'"),
        ("algorithm.mu=3", "fedavg takes no options, got 'mu'"),
        ("optimizer.learning_rate=3", "unknown option of sgd 'learning_rate'"),
        ("algorithms.fedsan.rho=1", r"unknown algorithm in .*'fedsan'\. Did you mean 'fedsam'"),
        ("optimizer.name=sgdd", r"unknown optimizer 'sgdd'\. Did you mean 'sgd'"),
        ("training", "--set takes section.key=value"),
        ("training=3", "training is a table of keys, got 3"),
        ("algorithm.name=client2vec", "uses an atlas over any base.*--atlas FILE --use sample,aggregate"),
        ("algorithm.name=grouped", "uses an atlas over any base.*give --use group"),
        ("atlas.path=x.safetensors", r"unknown key .*atlas\. 'path'.*Known: .*file"),
        ("atlas.train=true", r"unknown key .*atlas\. 'train'"),
        ("atlas.use=['train']", r"atlas\.use says how an atlas is used, and there is none.*--atlas FILE"),
        ("atlas.tau=0.1", r"atlas\.tau says how an atlas is used, and there is none"),
    ],
)
def test_a_wrong_setting_is_named_with_the_nearest_known(setting: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Config.load(None, [setting]).algorithm()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("seed=one", "seed must be a whole number, got 'one'"),
        ("seeds.model=1.5", "seeds.model must be a whole number or nothing, got 1.5"),
        ("training.rounds=five", "training.rounds must be a whole number, got 'five'"),
        ("training.epochs=true", "training.epochs must be a whole number, got True"),
        ("training.batch_size=1.5", "training.batch_size must be a whole number, got 1.5"),
        ("training.cohort=abc", "training.cohort must be a whole number, a fraction or nothing, got 'abc'"),
        ("training.compile=1", "training.compile must be true or false, got 1"),
        ("training.buffers=kept", "training.buffers must be 'average', 'keep', 'none' or nothing, got 'kept'"),
        ("training.augment={flip = 'x'}", "training.augment.flip must be a number, got 'x'"),
        ("training.augment={erase_pixels = [1]}", "erase_pixels must be a list of 2 whole numbers, got [1]"),
        ("data.domains=photo", "data.domains must be a list of texts or nothing, got 'photo'"),
        ("data.partition={name = 'iid', num_clients = 3.5}", "data.partition.num_clients must be a whole number"),
        ("data.partition={name = 'dirichlet', alpha = 'x'}", "data.partition.alpha must be a number, got 'x'"),
        ("data.partition={name = ['iid']}", "data.partition.name must be a text, got ['iid']"),
        ("optimizer.lr=fast", "optimizer.lr must be a number, got 'fast'"),
        ("optimizer.schedule=cosin", "optimizer.schedule must be 'constant' or 'cosine', got 'cosin'"),
        ("data.source=none", "data.source must be a path, got None. To set a text, write it in quotes"),
        ("model={name = 'cnn', width = 'wide'}", "model.width must be a whole number, got 'wide'"),
        ("algorithms.fedprox.mu=abc", "algorithms.fedprox.mu must be a number, got 'abc'"),
        ("algorithms.fedprox=3", "algorithms.fedprox must be a table, got 3"),
        ("algorithm={name = 'feddisco', base = 3}", "algorithm.base must be a name, a table or nothing, got 3"),
        ("algorithm={name = 'feddisco', base = {name = 'moon', mu = 'x'}}", "algorithm.base.mu must be a number"),
        ("algorithm={name = 'feddisco', base = {mu = 1}}", "algorithm.base is a name or a table with a name"),
        ("algorithm={name = 'fedgr', atlas = 3}", "algorithm.atlas must be a path or nothing, got 3"),
        ("atlas.use=train", "atlas.use must be a list of texts, got 'train'. Write [\"train\"]."),
        ("atlas.tau=warm", "atlas.tau must be a number or nothing, got 'warm'"),
        ("atlas.make={epochs = 'ten'}", "atlas.make.epochs must be a whole number, got 'ten'"),
        ("atlas.make={settings = {layers = 'two'}}", "atlas.make.settings.layers must be a whole number, got 'two'"),
        ("flower.clients=few", "flower.clients must be a whole number, a list of texts or nothing, got 'few'"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_key(setting: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Config.load(None, [setting])


def test_options_of_a_model_that_is_not_named_are_checked_when_it_is_chosen() -> None:
    with raises(UsageError, "wrong-type", setting="model.width", got="wide"):
        Config.load(None, ["model.width=wide"]).model()


def test_a_whole_number_is_a_number() -> None:
    settings = ["optimizer.lr=1", "training.memory_limit=2", "atlas.lambda1=inf", "model.name=mlp", "model.hidden=[8]"]
    config = Config.load(None, settings, data={"folder": Path("data")}, training={"cohort": 3})
    assert config.values["optimizer"]["lr"] == 1
    assert config.plan().cohort == 3


def test_how_to_make_an_atlas_is_a_table() -> None:
    with raises(UsageError, "wrong-type", setting="atlas.make", got="label-histogram"):
        Config.load(None, ["atlas.make=label-histogram"]).atlas_settings()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.source=digit", r"unknown .*'digit'.*Did you mean 'digits'"),
        ("data.partition=dirichle", r"unknown partition 'dirichle'\. Did you mean 'dirichlet'"),
        ("data.partition={name = 'dirichlet', alfa = 1}", "unknown option of dirichlet 'alfa'"),
        ("data.partition={nam = 'dirichlet'}", r"data\.partition needs a key name, got 'nam'\. .*dirichlet"),
    ],
)
def test_wrong_data_settings_are_named(setting: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Config.load(None, [setting]).federation()


def test_images_are_scaled_as_the_config_says() -> None:
    """A white pixel, 1, of mean 0.5 and deviation 0.25 is (1 - 0.5) / 0.25 = 2."""
    config = Config.load(None, ["data.mean=[0.5, 0.5, 0.5]", "data.std=[0.25, 0.25, 1]"])
    federation = config.federation()
    white = (federation.data.inputs.amin(1) == 255).flatten(1).any(1).nonzero()[0]
    assert ResidentData(federation, 0).batch(white, None).inputs.amax((0, 2, 3)).tolist() == [2.0, 2.0, 0.5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data.mean=[0.5, 0.5, 0.5]"], "data.mean and data.std go together"),
        (["data.mean=[0.5]", "data.std=[0.5]"], "one number for each of 3 channels; got 1 and 1"),
        (["data.mean=[0.5, 0.5, 0.5]", "data.std=[0.5, 0, 0.5]"], "std= must be above 0"),
        (["data.source=FEATURES", "data.mean=[0.5]", "data.std=[0.5]"], "are for images"),
    ],
)
def test_a_scaling_that_cannot_be_is_refused(settings: list[str], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "features.npz", x=np.zeros((4, 1), dtype=np.float32), y=np.arange(4) % 2)
    given = [setting.replace("FEATURES", str(tmp_path / "features.npz")) for setting in settings]
    with pytest.raises(UsageError, match=re.escape(message)):
        Config.load(None, given).dataset()


def test_every_option_that_a_config_can_set_has_a_type() -> None:
    makers = [*ALGORITHMS.values(), *OPTIMIZERS.values(), *PARTITIONS.values(), *MODELS.values()]
    for make in makers:
        assert inspect.signature(make).parameters.keys() <= get_type_hints(make).keys()
    assert [key for key, setting in SETTINGS.items() if setting.kind is Any] == []


def test_a_registry_s_text_says_what_python_s_signature_says() -> None:
    for registry in (ALGORITHMS, OPTIMIZERS):
        for name, entry in registry.entries.items():
            assert set(entry.parameters) == set(inspect.signature(registry[name]).parameters), name


def test_defaults_that_python_functions_repeat_are_those_of_the_config() -> None:
    data = inspect.signature(federate).parameters
    for name in ("test_fraction", "held_out"):
        assert SETTINGS[f"data.{name}"].default == data[name].default
    assert get_args(get_args(field_kinds(TrainingTables)["buffers"])[0]) == get_args(Buffers)


def test_a_missing_or_broken_file_is_reported(tmp_path: Path) -> None:
    with raises(UsageError, "file-missing"):
        Config.load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with raises(UsageError, "file-invalid"):
        Config.load(tmp_path / "bad.toml")


def test_clients_are_counted_equally_where_the_config_says_so() -> None:
    for equal in (False, True):
        algorithm = Config.load(algorithm={"name": "feddisco"}, training={"equal_weights": equal}).algorithm()
        assert [link.name for link in algorithm.weighting] == ["equal" if equal else "examples", "discrepancy"]


def test_one_algorithm_goes_by_several_names_with_other_options() -> None:
    own = [
        'algorithms.weak={name = "fedprox", mu = 0.01}',
        'algorithms.strong={name = "fedprox"}',
        "algorithms.strong.mu=1",
    ]
    for name, mu in {"weak": 0.01, "strong": 1}.items():
        algorithm = Config.load(None, own, algorithm={"name": name}).algorithm()
        assert (algorithm.name, algorithm.objective[-1]) == ("fedprox", Proximal(mu=mu))
    with raises(UsageError, "unknown-name", got="wek"):
        Config.load(None, ["algorithms.wek.mu=1"])
    with raises(UsageError, "wrong-type", setting="algorithms.weak.mu", got="x"):
        Config.load(None, ['algorithms.weak={name = "fedprox", mu = "x"}'])


def test_a_run_with_an_atlas_has_a_default_folder_of_its_own() -> None:
    for settings, folder in {
        (): "runs/digits-fedavg-0",
        ("atlas.file=a.safetensors",): "runs/digits-fedavg-atlas-0",
        ("atlas.make.source=label-histogram", "seed=3"): "runs/digits-fedavg-atlas-3",
    }.items():
        assert default_folder(Config.load(None, settings)) == Path(folder)


def test_the_page_s_table_is_made_of_the_settings() -> None:
    """On a difference: replace the table by what ``fedatlas.config.listing.settings_table()`` returns."""
    page = (Path(__file__).parents[2] / "docs" / "configs.md").read_text(encoding="utf-8")
    assert settings_table() in page
    assert set(settings_lines()) == set(SETTINGS)
