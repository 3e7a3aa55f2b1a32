"""``fedatlas adapt``: bring clients to a run that was trained without them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedatlas.adapting.settings import TUNES, AdaptSettings
from fedatlas.cli.adapt_options import (
    ClientOption,
    CompareOption,
    CompileOption,
    ExamplesOption,
    LabelsOption,
    NearAtlasOption,
    NewDataOption,
    OnnxOption,
    RateOption,
    RunArgument,
    SaveOption,
    StartOption,
    StepsOption,
    TuneOption,
    TuningRoundsOption,
)
from fedatlas.cli.checks import check_atlas
from fedatlas.cli.options import MACHINE, AllowCodeOption, DataFolderOption, DeviceOption
from fedatlas.cli.terminal import check_writable, friendly, print_lines, print_rows, remark, say
from fedatlas.data.loading.catalogue import check_source
from fedatlas.errors import UsageError, unknown_name
from fedatlas.runs.schema import check_run, figure

if TYPE_CHECKING:
    from fedatlas.adapting.adapter import Adapter
    from fedatlas.adapting.result import Adapted
    from fedatlas.atlas import Atlas
    from fedatlas.atlas.placing import Placement

STARTS = {"unit": "initial", "mean": "mean", "nearest": "nearest", "first": "first", "own": "own", "group": "group"}
"""What ``--start`` takes, and what the adapter calls it."""
STOPPED = 130
"""The exit status after Ctrl-C."""


def adapt(
    run: RunArgument,
    client: ClientOption = None,
    data: NewDataOption = None,
    data_folder: DataFolderOption = None,
    start: StartOption = None,
    atlas: NearAtlasOption = None,
    labels: LabelsOption = AdaptSettings.labels,
    examples: ExamplesOption = None,
    tune: TuneOption = AdaptSettings.tune,
    rounds: TuningRoundsOption = None,
    steps: StepsOption = AdaptSettings.steps,
    lr: RateOption = None,
    device: DeviceOption = MACHINE.device,
    compare: CompareOption = AdaptSettings.compare,
    compile: CompileOption = AdaptSettings.compile,
    save: SaveOption = None,
    onnx: OnnxOption = False,
    allow_code: AllowCodeOption = None,
) -> None:
    """Tune a run's model on new clients: what its algorithm keeps personal, else the head; test before and after."""
    with friendly():
        _check_words(start, tune)
        _check_pairs(
            (
                atlas is not None and start not in ("nearest", "group"),
                "--atlas is for --start nearest or group only; give both, or neither.",
            ),
            (data_folder is not None and data is None, "--data-folder says where --data is; give --data NAME."),
            (onnx and save is None, "--onnx says how to save; give --save FOLDER."),
        )
        _check_files(run, data, atlas)
        adapter = _open(run, data, data_folder, device, save, onnx=onnx)
        chosen = _chosen(adapter, client, is_new=data is not None)
        found = _read_atlas(adapter, atlas, chosen, start=start, is_new=data is not None)
        placements: list[Placement] | None = None
        if start == "group":
            looked = [adapter.place(name, atlas=found, examples=examples, labels=labels) for name in chosen]
            placements = _say_placements(adapter, looked)
            chosen = [placement.client for placement in placements]
        given = {"rounds": rounds, "tune": tune}
        results, whole = _tuned(
            adapter,
            chosen,
            group=placements,
            steps=steps,
            lr=lr,
            start=None if start is None else STARTS[start],
            atlas=found,
            examples=examples,
            labels=labels,
            compare=compare,
            compile=compile,
            **{name: value for name, value in given.items() if value is not None},
        )
        kept = adapter.keep(results)
        if placements is None:
            _say_placements(adapter, [own.placement for own in results if own.placement and own.placement.placed])
        print_adapted(results)
        if save is not None:
            _save(results, save, onnx=onnx)
        say(f"record: {kept}")
        if not whole:
            raise typer.Exit(STOPPED)


def _tuned(adapter: Adapter, clients: list[str], **settings: Any) -> tuple[list[Adapted], bool]:
    """Return the clients that were tuned, and whether that is all; after Ctrl-C, those that were until then."""
    from fedatlas.adapting.result import AdaptingStopped

    try:
        return adapter.adapt_all(clients, progress=None, **settings), True
    except AdaptingStopped as stopped:
        if not stopped.results:
            remark("\nStopped before a client was tuned.")
            raise typer.Exit(STOPPED) from None
        missing = len(clients) - len(stopped.results)
        left = f"; {missing} of {len(clients)} were not tuned" if missing else ""
        remark(f"\nStopped; clients that were tuned are kept, with the steps they took{left}.")
        return stopped.results, False


def _check_words(start: str | None, tune: str | None) -> None:
    if start is not None and start not in STARTS:
        raise unknown_name("start", start, STARTS)
    if tune is not None and tune not in TUNES:
        raise unknown_name("choice of what to tune", tune, TUNES)


def _check_files(run: Path, data: str | None, atlas: Path | None) -> None:
    check_run(run)
    if data is not None:
        check_source(data)
    if atlas is not None:
        check_atlas(atlas)


def _chosen(adapter: Adapter, named: list[str] | None, *, is_new: bool) -> list[str]:
    """Return the clients that are named; else those that were brought, or those that were held out."""
    chosen = list(dict.fromkeys(named or ()))
    if not chosen:
        chosen = [member.name for member in adapter.federation] if is_new else adapter.held_out
    if not chosen:
        where = adapter.run.folder
        raise UsageError(
            f"{where} held no client out; name one by --client, or bring one by --data.", code="no-client", path=where
        )
    return chosen


def _check_pairs(*pairs: tuple[bool, str]) -> None:
    """Raise an error at the first option that was given without the one that it belongs to."""
    for alone, said in pairs:
        if alone:
            raise UsageError(said, code="settings-conflict")


def _open(
    run: Path, data: str | None, data_folder: Path | None, device: str, save: Path | None, *, onnx: bool
) -> Adapter:
    """Check what would fail after long work, then open the run with its data or the given one."""
    from fedatlas.adapting.adapter import Adapter
    from fedatlas.adapting.export import make_folder, need_onnx
    from fedatlas.cli.train_config import check_device
    from fedatlas.config.reopen import run_reading
    from fedatlas.data.loading.load import load_dataset
    from fedatlas.runs.run import Run

    check_device(device)
    if onnx:
        need_onnx()
    if save is not None:
        check_writable("--save", save)
        make_folder(save)
    options = {} if data is None else run_reading(Run(run), data)
    given = None if data is None else load_dataset(data, data_folder=data_folder, options=options)
    for line in () if given is None else given.remarks:
        remark(line)
    adapter = Adapter(Run(run), data=given, device=device)
    if adapter.round < (asked := adapter.run.resolved["training"]["rounds"]):
        said = f"{run} is at round {adapter.round} of {asked}: its model is not trained to the end."
        warnings.warn(said, stacklevel=1)
    return adapter


def _read_atlas(
    adapter: Adapter, path: Path | None, chosen: list[str], *, start: str | None, is_new: bool
) -> Atlas | None:
    """Return the atlas of a file, with the chosen clients in it where the nearest one to each is asked for."""
    from fedatlas.atlas.atlas import Atlas

    if path is None:
        return None
    found = Atlas.load(path)
    if is_new:
        _refuse_namesakes(adapter, found, chosen)
    return _placed(adapter, found, chosen) if start == "nearest" else found


def _save(results: list[Adapted], folder: Path, *, onnx: bool) -> None:
    """Write each client's network."""
    from fedatlas.adapting.export import file_stem

    for adapted in results:
        stem = file_stem(adapted.client)
        _write(adapted.save, folder / f"{stem}.safetensors")
        if onnx:
            _write(adapted.export_onnx, folder / f"{stem}.onnx")


def print_adapted(results: list[Adapted]) -> None:
    """Print one row a client, and each one's few numbers where it has an embedding."""
    from fedatlas.report import table_note

    rows = [
        {
            "client": one.client,
            "domain": one.domain or "",
            "before": figure(one.metric.name, one.before.main),
            "after": figure(one.metric.name, one.after.main),
            "kept": one.kept,
            "examples": f"{one.num_examples:,}",
            "steps": f"{one.num_steps:,}",
            "numbers_tuned": f"{one.num_tuned:,}",
            "seconds": f"{one.seconds:.1f}",
            "bytes_received": f"{one.bytes_received:,}",
            "sent": f"{one.bytes_sent:,}",
        }
        for one in results
    ]
    origins = {one.client: one.origin for one in results}
    same = len(set(origins.values())) == 1
    print_rows(rows, table_note([results[0].adapter.run]) + (f"; start: {results[0].origin}" if same else ""))
    if not same:
        print_lines("where they started", origins)
    whys = {one.client: one.why for one in results if one.why}
    if whys:
        print_lines("which was kept", whys)
    numbers = {one.client: one.embedding for one in results if one.embedding is not None}
    if numbers:
        print_lines(
            "their numbers", {name: " ".join(f"{value:.3f}" for value in own.tolist()) for name, own in numbers.items()}
        )


def _write(save: Callable[[Path], Path], path: Path) -> None:
    """Write a network, and say where; and that an earlier one was there, which may have been another run's."""
    earlier = " (in place of an earlier one)" if path.exists() else ""
    say(f"network: {save(path)}{earlier}")


def _say_placements(adapter: Adapter, placements: list[Placement]) -> list[Placement]:
    """Print each client's group, or why it has none; return those that have one, and raise an error if none has."""
    from fedatlas.adapting.placement import need_placed

    for own in placements:
        shared = own.placed and adapter.models.serving(own) is None
        say(f"{own.client}: {own.describe()}{', which uses the model of all clients' if shared else ''}")
    placed = [own for own in placements if own.placed]
    if placements and not placed:
        need_placed(placements)
    return placed


def _refuse_namesakes(adapter: Adapter, atlas: Atlas, clients: list[str]) -> None:
    """Raise an error if the atlas would take new clients for others, which trained or were held out."""
    from fedatlas.data.dataset import first_few

    known = {client["name"] for client in adapter.run.resolved["federation"]["clients"]}
    if alike := [name for name in clients if name in known and name in atlas.names]:
        raise UsageError(
            f"--data: {first_few(alike)}: a client of {adapter.run.folder} has that name, and the atlas holds that "
            "client's vector. Give the new client another name (its owner, domain or file).",
            code="name-twice",
            got=alike,
        )


def _placed(adapter: Adapter, atlas: Atlas, clients: list[str]) -> Atlas:
    """Return the atlas with the clients in it, each placed as the atlas's own source places clients."""
    from fedatlas.atlas.add_client import place_client

    for name in clients:
        atlas = place_client(atlas, adapter.federation, name)
    return atlas
