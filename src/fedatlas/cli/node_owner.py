"""A node's owner: ``fedatlas flower policy`` writes what is allowed, ``split`` shows the parts, ``audit`` what left."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedatlas.cli.options import SetOption
from fedatlas.cli.terminal import check_file, friendly, print_rows, remark, say
from fedatlas.errors import UsageError

POLICY = "policy.toml"
SHOWN = 20
"""How many of the last lines are shown unless it is said."""


def policy(
    file: Annotated[Path, typer.Argument(help="Where to write the policy.")] = Path(POLICY),
    wanted: Annotated[
        Path | None,
        typer.Option("--for", help="Also allow what this run needs: an app's folder, or a config."),
    ] = None,
    set_: SetOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the policy that is there.")] = False,
) -> None:
    """Write a node's policy: what the node does for a server. Read it, change it, give it to `fedatlas flower node`."""
    with friendly():
        need_flower()
        check_file("policy", file, POLICY)
        if file.exists() and not overwrite:
            raise UsageError(
                f"{file} already exists. Change it by hand, or add --overwrite.", code="file-exists", path=str(file)
            )
        if set_ and wanted is None:
            raise UsageError("--set changes the config of --for; give both.", code="settings-conflict", got=set_)

        from fedatlas.config.config import Config
        from fedatlas.flower.deploy.template import app_config
        from fedatlas.flower.node.gate import wanted_by
        from fedatlas.flower.node.policy import policy_text

        more = None
        if wanted is not None:
            changes = set_ or ()
            more = wanted_by(app_config(wanted, changes) if wanted.is_dir() else Config.load(wanted, changes))
        write_policy(file, policy_text(more))
        say(f"policy: {file}")
        for name in more.disclosures if more is not None else ():
            remark(
                f"allowed to leave beyond the model's change: {name} (`fedatlas list --disclosures` says what it is)"
            )


def write_policy(file: Path, text: str) -> None:
    """Write a policy that its owner may change."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def owner_policy(given: Path | None, state: Path) -> Path:
    """Return the file of a node's policy, checked; the one in the node's folder is written if it is missing."""
    from fedatlas.flower.node.policy import Policy, policy_text

    file = given or state / POLICY
    if given is None and not file.exists():
        write_policy(file, policy_text())
        remark(f"policy: {file} (written now; it lets algorithms take the model's change and nothing more)")
    Policy.load(file)
    return file.resolve()


def audit(
    file: Annotated[
        Path, typer.Argument(help="An audit log, or the --state folder of a node.", show_default=False)
    ] = Path("flower-node"),
    last: Annotated[int, typer.Option("--last", help="How many of the last lines to show; 0 is all.")] = SHOWN,
    contains: Annotated[
        str | None, typer.Option("--contains", help="A hash noted earlier: fail if the log lost that line.")
    ] = None,
) -> None:
    """Check a node's audit log line by line, and show what left the node, when, and for which run."""
    with friendly():
        need_flower()
        from fedatlas.flower.node.audit import HASH, AuditLog

        for path in _logs(file):
            entries = list(AuditLog(path).entries())
            say(f"{path}: {len(entries)} lines, whole; last hash {entries[-1][HASH] if entries else 'none'}")
            if contains is not None and all(entry[HASH] != contains for entry in entries):
                raise UsageError(
                    f"{path} has no line with the hash {contains}: lines were cut off, or it is another node's log.",
                    code="audit-altered",
                    path=str(path),
                )
            if entries:
                print_rows(
                    [_row(entry) for entry in entries[-last:]],
                    f"{sum(map(_bytes, entries)):,} bytes have left this node",
                )


def split(
    state: Annotated[
        Path, typer.Argument(help="A node's --state folder, or its split.json.", show_default=False)
    ] = Path("flower-node"),
    let_in: Annotated[
        bool, typer.Option("--let-in", help="Let rows that came later into the parts, when the node next reads them.")
    ] = False,
) -> None:
    """Show how many of a node's rows are for training and for the test, and how many came later and are left out."""
    with friendly():
        need_flower()
        from fedatlas.flower.node.split import SPLIT, KeptSplit

        files = sorted(state.rglob(SPLIT)) if state.is_dir() else [state]
        if not files or not files[0].exists():
            raise UsageError(
                f"no split is kept at {state}. A node keeps it in STATE/memory/CLIENT/{SPLIT} once it has read its "
                "data.",
                code="file-missing",
                path=str(state),
            )
        for path in files:
            kept = KeptSplit.read(path)
            if let_in:
                kept.lets_in = True
                kept.write()
            said = f"{len(kept.train):,} rows to train on, {len(kept.test):,} to test on"
            coming = "; rows that came later are let in when the node next reads its data" if kept.lets_in else ""
            say(f"{path}: {said}, {kept.waiting:,} left out{coming}")


def _logs(place: Path) -> list[Path]:
    found = sorted(place.rglob("audit.jsonl")) if place.is_dir() else [place]
    if not found or not found[0].exists():
        raise UsageError(
            f"there is no audit log at {place}. A node writes it to STATE/memory/CLIENT/audit.jsonl.",
            code="file-missing",
            path=str(place),
        )
    return found


def _bytes(entry: dict[str, Any]) -> int:
    return int(entry.get("bytes", 0))


def _row(entry: dict[str, Any]) -> dict[str, str]:
    left = ", ".join(entry.get("left", ())) or str(entry.get("why", ""))
    number = entry.get("round")
    return {
        "time": str(entry.get("time", "")).removesuffix("+00:00"),
        "run": str(entry.get("run", ""))[:16],
        "round": "" if number is None else str(number),
        "request": str(entry.get("request", "")),
        "algorithm": str(entry.get("algorithm", "")),
        "answer": str(entry.get("answer", "")),
        "bytes": f"{_bytes(entry):,}" if "bytes" in entry else "",
        "what": left if len(left) < 70 else f"{left[:67]}...",
    }


def need_flower() -> None:
    """Raise an error if Flower is not installed, or is not the version that fedatlas runs on."""
    from fedatlas.flower.version import check_flower

    check_flower()
