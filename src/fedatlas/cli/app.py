"""The command line: ``fedatlas demo | train | compare | adapt | map | list | report | flower``."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from fedatlas.cli.adapt import adapt
from fedatlas.cli.flower import app as flower
from fedatlas.cli.options import (
    AlgorithmOption,
    AtlasOption,
    ConfigOption,
    DataFolderOption,
    DataOption,
    DeviceOption,
    EngineOption,
    ModelOption,
    OverwriteOption,
    ResumeOption,
    RoundsOption,
    SeedOption,
    SetOption,
    UseOption,
    WorkersOption,
)
from fedatlas.cli.terminal import check_file, errors, friendly, output, print_error, print_lines, print_rows
from fedatlas.errors import TrainingError, UsageError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning where every client has a vector that says what its data looks like.",
)
app.command()(adapt)
app.add_typer(flower, name="flower")


@app.command()
def train(
    config: ConfigOption = None,
    set_: SetOption = None,
    algorithm: AlgorithmOption = None,
    data: DataOption = None,
    data_folder: DataFolderOption = None,
    model: ModelOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    atlas: AtlasOption = None,
    use: UseOption = None,
    device: DeviceOption = "cpu",
    workers: WorkersOption = None,
    engine: EngineOption = "auto",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            "-f",
            help="Where the run is kept; default runs/DATA-ALGORITHM-SEED, or with an atlas ...-atlas-SEED.",
        ),
    ] = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time of a round goes.")] = False,
) -> None:
    """Train one algorithm and keep the run in a folder."""
    from fedatlas.cli.run_config import default_folder, run_config
    from fedatlas.config.config import Config
    from fedatlas.runs.writer import check_folder

    with friendly():
        sections = _sections(algorithm, data, data_folder, model, rounds, seed) | _atlas_section(atlas, use)
        if resume and folder is not None and config is None and (folder / "config.toml").exists():
            config = folder / "config.toml"
        settings = Config.load(config, set_ or (), **sections)
        where = folder or default_folder(settings)
        if resume and not check_folder(where, resume=resume, overwrite=overwrite):
            errors.print(f"{where} holds no run yet: a new one begins.", highlight=False, soft_wrap=True)
        machine: dict[str, Any] = {"device": device, "workers": workers, "engine": engine}
        run = run_config(settings, where, **machine, resume=resume, overwrite=overwrite, profile=profile)
        print_results([run])
        if profile:
            print_profile(run)
        output.print(f"run: {run.folder}\nreport: {run.report()}", highlight=False, soft_wrap=True)


@app.command()
def compare(
    algorithms: Annotated[list[str], typer.Argument(help="Names, as `fedatlas list algorithms` has them, or `all`.")],
    config: ConfigOption = None,
    set_: SetOption = None,
    data: DataOption = None,
    data_folder: DataFolderOption = None,
    model: ModelOption = None,
    rounds: RoundsOption = None,
    seeds: Annotated[
        str, typer.Option("--seeds", help="Seeds, comma separated; of several, figures are mean ± standard deviation.")
    ] = "0",
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", help="Runs at a time, each a process: several small ones share a GPU well.")
    ] = 1,
    device: DeviceOption = "cpu",
    workers: WorkersOption = None,
    engine: EngineOption = "auto",
    folder: Annotated[
        Path | None,
        typer.Option("--folder", "-f", help="Where the runs are kept, a folder for each; default runs/compare."),
    ] = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Train several algorithms on the same clients, print one table and write a report."""
    from fedatlas.algorithms import standalone
    from fedatlas.cli.run_config import run_side_by_side, short_name, try_config, unfit_algorithms
    from fedatlas.config.config import Config
    from fedatlas.report import write_report

    with friendly():
        top = folder or Path("runs") / "compare"
        if jobs < 1:
            raise UsageError(f"--jobs must be at least 1, got {jobs}.")
        if joined := [name for name in algorithms if "," in name and ":" not in name]:
            words = " ".join(part.strip() for part in joined[0].split(","))
            raise UsageError(f"compare: {joined[0]!r} is no algorithm. Separate names by spaces: {words}.")
        if "all" in algorithms[1:] or (algorithms[0] == "all" and len(algorithms) > 1):
            raise UsageError("compare: `all` is every algorithm; give it alone, or only names.")
        if twice := sorted(name for name, count in Counter(map(short_name, algorithms)).items() if count > 1):
            raise UsageError(
                f"compare: {', '.join(twice)} comes twice, and both would go to one folder. Give functions different "
                "names, or name options under [algorithms]."
            )
        settings = {
            top / f"{short_name(name)}-{seed}": Config.load(
                config, set_ or (), **_sections(name, data, data_folder, model, rounds, seed)
            )
            for seed in _seed_list(seeds)
            for name in (standalone() if algorithms == ["all"] else algorithms)
        }
        for name, why in unfit_algorithms(settings.values()).items():
            if algorithms != ["all"]:
                raise why
            errors.print(f"{name} is left out: {why}", highlight=False, soft_wrap=True)
            settings = {where: one for where, one in settings.items() if one.values["algorithm"]["name"] != name}
        machine: dict[str, Any] = {"device": device, "workers": workers, "engine": engine}
        machine |= {"resume": resume, "overwrite": overwrite}
        if jobs > 1:
            outcomes = run_side_by_side(settings, jobs, machine)
        else:
            outcomes = [try_config(one, where, **machine) for where, one in settings.items()]
        failures = {where: o for where, o in zip(settings, outcomes, strict=True) if isinstance(o, TrainingError)}
        runs = [outcome for outcome in outcomes if not isinstance(outcome, TrainingError)]
        if runs:
            print_results(runs)
            output.print(f"report: {write_report(runs, top / 'report.html')}", highlight=False, soft_wrap=True)
        for where, failure in failures.items():
            print_error(f"{where.name} broke:", failure)
        if failures:
            raise typer.Exit(1)


@app.command()
def demo(
    folder: Annotated[
        Path | None,
        typer.Option("--folder", "-f", help="Where the runs are kept, in place of earlier ones; default runs/demo."),
    ] = None,
    workers: WorkersOption = None,
    rounds: Annotated[int, typer.Option("--rounds", "-r", help="How many rounds of training.")] = 10,
) -> None:
    """Train all algorithms on the embedded digits in two comparisons, each with a table and a report."""
    from fedatlas.cli.demo import run_demo

    with friendly():
        for part in run_demo(folder or Path("runs") / "demo", workers=workers, rounds=rounds):
            output.print(f"\n{part.title}", style="bold", highlight=False)
            print_results(part.runs)
            for record in (record for run in part.runs if run.name == "fedpce" for record in run.adapted):
                accuracy = f"{100 * record['accuracy_before']:.1f} -> {100 * record['accuracy_after']:.1f}"
                took = f"{record['num_tuned']} numbers tuned in {record['seconds']:.1f} s"
                output.print(f"fedpce brings in {record['client']}: {accuracy}, {took}", highlight=False)
            output.print(f"\nOpen {part.report} in a browser.", highlight=False, soft_wrap=True)


@app.command(name="map")
def map_(
    config: ConfigOption = None,
    set_: SetOption = None,
    data: DataOption = None,
    data_folder: DataFolderOption = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="The seed of the partition and of Client2Vec's network; default 0.")
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            help="A run's folder: map what its clients keep of their own (fedpce, fedbn, fedper), and no data.",
        ),
    ] = None,
    source: Annotated[
        str, typer.Option("--source", help="What makes the vectors: one of `fedatlas list atlases`.")
    ] = "client2vec",
    encoder: Annotated[
        str,
        typer.Option("--encoder", help="What turns examples into embeddings: one of `fedatlas list encoders`."),
    ] = "builtin",
    strategy: Annotated[
        str,
        typer.Option("--strategy", help="How Client2Vec's network is trained: global (at the server) or federated."),
    ] = "global",
    epochs: Annotated[
        int, typer.Option("--epochs", help="Passes (global) or rounds (federated) of Client2Vec's network.")
    ] = 10,
    device: DeviceOption = "cpu",
    workers: WorkersOption = None,
    to: Annotated[Path, typer.Option("--to", help="The file of the atlas; its pictures go beside it.")] = Path(
        "atlas.safetensors"
    ),
) -> None:
    """Give every client a vector that says what its data look like; save them as an atlas and draw it."""
    from fedatlas.atlas.from_run import run_atlas
    from fedatlas.atlas.grouping import cluster_accuracy
    from fedatlas.atlas.sources import atlas_disclosures, make_atlas
    from fedatlas.cli.run_config import check_device
    from fedatlas.config.config import Config
    from fedatlas.parts.disclosure import words
    from fedatlas.report.atlas_pictures import map_picture, save_picture, similarity_picture
    from fedatlas.runs.run import Run

    with friendly():
        check_device(device)
        check_file("--to", to, "atlas.safetensors")
        if run is not None:
            others = {"--config": config, "--set": set_, "--data": data, "--data-folder": data_folder, "--seed": seed}
            if idle := [name for name, value in others.items() if value is not None]:
                raise UsageError(f"--run maps what clients keep in that run; leave out {', '.join(idle)}, or --run.")
            atlas = run_atlas(Run(run))
            left = "the client's vector: what it keeps of its own in the run, which stays home otherwise"
        else:
            settings = Config.load(config, set_ or (), **_sections(None, data, data_folder, None, None, seed))
            left = "; ".join(words(atlas_disclosures(source, strategy)))
            atlas = make_atlas(
                settings.federation(),
                source=source,
                encoder=encoder,
                strategy=strategy,
                epochs=epochs,
                seed=settings.seeds().model,
                device=device,
                workers=workers,
            )
        atlas.save(to)
        drawn: list[Path] = []
        for title, picture in {"similarity": similarity_picture(atlas), "map": map_picture(atlas)}.items():
            drawn.append(to.with_name(f"{to.stem}-{title}.png"))
            save_picture(picture, drawn[-1])
        near = {name: atlas.neighbours(name, 3) for name in atlas.names[:20]}
        print_lines(
            "nearest clients",
            {name: ", ".join(f"{o} {cosine:.2f}" for o, cosine in found) for name, found in near.items()},
        )
        if 1 < (count := len({*atlas.domains})) < len(atlas):
            right = cluster_accuracy(atlas.groups(count), list(atlas.domains))
            output.print(f"groups: {count} by k-means, {right:.0%} of clients are of their group's commonest domain")
        pictures = ", ".join(map(str, drawn))
        output.print(
            f"what left each client: {left}\natlas: {to}\npictures: {pictures}", highlight=False, soft_wrap=True
        )


@app.command(name="list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="Only algorithms, datasets, partitions, models, atlases (sources of one), encoders or optimizers."
        ),
    ] = None,
    disclosures: Annotated[
        bool, typer.Option("--disclosures", help="Show instead what leaves a client, by algorithm and by atlas.")
    ] = False,
) -> None:
    """Show what the other commands can be given by name, one line each."""
    from fedatlas.cli.catalogue import CATALOGUES, NOTES, disclosures_by_algorithm
    from fedatlas.errors import unknown_name

    with friendly():
        if disclosures:
            print_lines("what leaves a client", disclosures_by_algorithm())
            return
        if kind is not None and kind not in CATALOGUES:
            raise unknown_name("kind", kind, CATALOGUES)
        for title in [kind] if kind else CATALOGUES:
            print_lines(title, CATALOGUES[title](), NOTES.get(title))


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs that `train` made, or of several that `compare` made.")
    ],
    to: Annotated[
        Path | None, typer.Option("--to", help="The HTML file; default report.html in the first folder.")
    ] = None,
) -> None:
    """Write one HTML page about a run, or comparing several."""
    from fedatlas.report import write_report
    from fedatlas.runs.run import find_runs

    with friendly():
        page = to or runs[0] / "report.html"
        found = [run for folder in runs for run in find_runs(folder)]
        check_file("--to", page, "report.html")
        print_results(found)
        output.print(f"report: {write_report(found, page)}", highlight=False, soft_wrap=True)


def print_results(runs: list[Any]) -> None:
    """Print one table of runs, one row an algorithm, and a note where rows are over different clients."""
    from fedatlas.report import results_table, split_note

    print_rows(results_table(runs), "accuracies in percent")
    if note := split_note(runs):
        output.print(note, highlight=False, soft_wrap=True)


def print_profile(run: Any) -> None:
    """Print where the time of a round went, stage by stage."""
    rows = [
        {"stage": row.stage, "ms a round": f"{1e3 * row.seconds:.1f}", "share": f"{row.share:.1%}", "what": row.what}
        for row in run.profile()
    ]
    print_rows(rows, "mean over rounds, without the first")


def _sections(
    algorithm: str | None,
    data: str | None,
    data_folder: Path | None,
    model: str | None,
    rounds: int | None,
    seed: int | None,
) -> dict[str, Any]:
    """Return what was given on the command line, as config sections."""
    sections: dict[str, Any] = {
        "algorithm": {"name": algorithm},
        "data": {"source": data, "folder": str(data_folder) if data_folder else None},
        "model": {"name": model},
        "training": {"rounds": rounds},
    }
    given = {title: {k: v for k, v in keys.items() if v is not None} for title, keys in sections.items()}
    return {title: keys for title, keys in given.items() if keys} | ({} if seed is None else {"seed": seed})


def _atlas_section(atlas: Path | None, use: str | None) -> dict[str, Any]:
    if use is not None and atlas is None:
        raise UsageError("--use says what an atlas is for; give it with --atlas FILE.")
    uses = {} if use is None else {"use": [part.strip() for part in use.split(",")]}
    return {} if atlas is None else {"atlas": {"file": str(atlas), **uses}}


def _seed_list(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--seeds takes whole numbers separated by commas, got {text!r}.") from None


def main() -> None:
    """Run the command line."""
    sys.exit(app())
