"""What a node's owner agreed to counts for every message, whatever the server calls its run."""

from pathlib import Path

import pytest
import torch
from flwr.app import RecordDict

from fedatlas.config import Config
from fedatlas.flower.node.policy import Wanted, policy_text
from fedatlas.flower.protocol.messages import arrays
from fedatlas.flower.protocol.wire import unfolded
from hostile_server import ASSIGNMENT, Server, refused

pytestmark = pytest.mark.attack("a server means harm")

WHOLE = {**ASSIGNMENT, "turn": 0, "branch": "", "forgets": False, "version": "0", "keep": ["0"], "test": False}
GLOBAL = 'atlas.make={ source = "client2vec", strategy = "global", epochs = 1 }'
PROTOTYPES = 'atlas.make={ source = "class-prototypes" }'
AVERAGE = 'atlas.make={ source = "feature-average" }'
MORE: dict[str, tuple[str, str, str]] = {
    "a control variate": ("algorithm.name=scaffold", "train", "scaffold"),
    "label counts": ("algorithm.name=feddisco", "query.introduce", "feddisco"),
    "a loss before training": ("algorithm.name=term", "query.survey", "term"),
    "embeddings with labels": (GLOBAL, "query.pairs", "map client2vec global"),
    "means of classes": (PROTOTYPES, "query.row", "map class-prototypes"),
    "shares of classes": ('atlas.make={ source = "label-histogram" }', "query.row", "map label-histogram"),
}


def agreeing_to(folder: Path, *names: str) -> Server:
    return Server(folder, policy=policy_text(Wanted(disclosures=names)))


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("task", ["check", "train", "anything"])
def test_a_run_that_calls_itself_a_check_gets_no_more_than_a_check(more: str, task: str, tmp_path: Path) -> None:
    """The messages are whole and right: a node that answered them would send what is named."""
    setting, kind, name = MORE[more]
    server = agreeing_to(tmp_path, "check")
    server.call_it(task)
    server.set(setting)
    model = server.model(Config.load(tmp_path / "run.toml", [] if "atlas" in setting else [setting]))
    zeros = {title: torch.zeros_like(own) for title, own in model.items()}
    records = {"shared": arrays(model), "buffers": arrays({}), "note/scaffold": arrays(zeros)}
    reply = server.ask(kind, WHOLE, **records)
    assert refused(reply, f"disclosure {name!r}"), reply.content if reply.has_content() else reply.error
    assert server.log()[-1]["answer"] == "refused"


def leaves(server: Server, kind: str) -> RecordDict:
    reply = server.ask(kind, WHOLE)
    assert reply.has_content(), reply.error
    return unfolded(reply.content)


def test_a_summary_leaves_for_a_check_or_for_the_atlas_that_was_agreed_to(tmp_path: Path) -> None:
    """An owner who agreed to means of all examples did not agree to means by class, which a check takes."""
    cases = [
        (("check",), "check", "", 3),
        (("check",), "train", PROTOTYPES, 3),
        (("check",), "train", AVERAGE, 1),
        (("map class-prototypes",), "check", PROTOTYPES, 3),
        (("map class-prototypes",), "train", PROTOTYPES, 3),
        (("map feature-average",), "train", AVERAGE, 1),
        (("map feature-average",), "check", AVERAGE, 0),
        (("map feature-average",), "train", PROTOTYPES, 0),
        (("map class-prototypes",), "check", "", 0),
        (("map client2vec global",), "check", GLOBAL, 0),
        ((), "check", "", 0),
    ]
    for number, (agreed, task, setting, classes) in enumerate(cases):
        (tmp_path / str(number)).mkdir()
        server = agreeing_to(tmp_path / str(number), *agreed)
        server.call_it(task)
        server.set(setting)
        if classes:
            assert len(leaves(server, "query.sums").array_records["row"]["counts"].numpy()) == classes, cases[number]
        else:
            assert refused(server.ask("query.sums", WHOLE), "may not leave this node"), cases[number]


@pytest.mark.parametrize("kind", ["query.figures", "query.sums", "query.cells"])
def test_what_a_check_takes_leaves_only_a_node_that_agreed_to_a_check(kind: str, tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.call_it("check")
    assert refused(server.ask(kind, WHOLE), "disclosure 'check'")


def test_hashes_of_examples_need_an_agreement_of_their_own(tmp_path: Path) -> None:
    server = agreeing_to(tmp_path, "check")
    server.call_it("check")
    assert leaves(server, "query.hashes").array_records["row"]["hashes"].numpy().tolist() == []
    (tmp_path / "copies.key").write_text("a key that is long enough\n")
    server.grid.contexts[1].node_config["copies-key"] = str(tmp_path / "copies.key")
    assert refused(server.ask("query.hashes", WHOLE), "disclosure 'check, copies'")


def test_a_message_without_a_rule_is_refused(tmp_path: Path) -> None:
    """Flower takes ``train.default`` for ``train``; a name that the node does not know may lead anywhere."""
    server = Server(tmp_path, policy=policy_text(everything=True))
    model = server.model(Config.load(tmp_path / "run.toml"))
    reply = server.ask("train.default", WHOLE, shared=arrays(model), buffers=arrays({}))
    assert refused(reply, "a message of type 'train.default' has no rule here")
