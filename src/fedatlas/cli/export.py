"""``fedatlas export``: a run's trained network as files for use elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedatlas.cli.terminal import check_writable, friendly, say
from fedatlas.runs.schema import check_run


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run that `train` or `compare` made.")],
    to: Annotated[
        Path | None, typer.Option("--to", help="The folder for the files; default `export` in the run's folder.")
    ] = None,
    client: Annotated[
        str | None, typer.Option("--client", help="The model of this client, with what it keeps for itself.")
    ] = None,
    group: Annotated[int | None, typer.Option("--group", help="The model of this group of clients.")] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also as ONNX (needs the extra onnx).")] = False,
    huggingface: Annotated[
        bool, typer.Option("--huggingface", help="Also as a folder that transformers reads, for a model hf:NAME.")
    ] = False,
) -> None:
    """Write a run's trained network as safetensors, and as ONNX or a Hugging Face folder."""
    with friendly():
        check_run(run)
        folder = to or run / "export"
        check_writable("--to", folder)

        from fedatlas.adapting.export import need_onnx
        from fedatlas.adapting.run_files import export_run
        from fedatlas.runs.run import Run

        if onnx:
            need_onnx()
        forms = ("safetensors", *(["onnx"] if onnx else []), *(["huggingface"] if huggingface else []))
        for file in export_run(Run(run), folder, forms=forms, client=client, group=group):
            say(f"wrote {file}")
