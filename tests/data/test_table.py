import json

import pytest

from fedatlas.data.loading.table import from_table
from fedatlas.data.loading.texts import from_texts
from fedatlas.errors import DataError, UsageError
from raising import raises


def spell(data, row: int) -> str:
    return "".join(data.vocabulary[token] for token in data.inputs[row])


def test_without_labels_the_next_character_is_predicted():
    """'abcab' has the windows abc -> a and bca -> b; 'bb' and 'ba' join to 'bb ba': bb_ -> b, b_b -> a."""
    with pytest.warns(UserWarning, match=r"texts: 1 of 3 clients have no more than 3 .* left out: cy \(1\)\. Give"):
        data = from_texts(["abcab", "bb", "ba", "x"], clients=["ann", "bob", "bob", "cy"], context=3)
    assert data.vocabulary == data.classes == (" ", "a", "b", "c")
    windows = [(spell(data, i), data.classes[data.labels[i]], data.owners[data.owner[i]]) for i in range(len(data))]
    assert windows == [("abc", "a", "ann"), ("bca", "b", "ann"), ("bb ", "b", "bob"), ("b b", "a", "bob")]
    assert data.owners == ("ann", "bob")


def test_a_stride_thins_the_windows_and_keeps_their_labels():
    whole = from_texts(["abcdefghij"], clients=["ann"], context=3)
    thinned = from_texts(["abcdefghij"], clients=["ann"], context=3, stride=2)
    assert thinned.inputs.tolist() == whole.inputs[::2].tolist()
    assert thinned.labels.tolist() == whole.labels[::2].tolist()


def test_at_a_stride_of_context_plus_one_windows_share_no_character():
    text = "".join(chr(ord("a") + i) for i in range(26))
    data = from_texts([text], clients=["ann"], context=4, stride=5)
    parts = [spell(data, i) + data.classes[data.labels[i]] for i in range(len(data))]
    assert "".join(parts) == text[:25]


def test_with_labels_texts_are_cut_and_padded():
    data = from_texts(["good day", "no"], clients=["a", "b"], labels=["pos", "neg"], context=4)
    assert data.classes == ("neg", "pos")
    assert data.labels.tolist() == [1, 0]
    assert [spell(data, i) for i in range(2)] == ["good", "no"]
    assert data.inputs[1, 2:].tolist() == [0, 0]
    assert data.vocabulary[0] == ""


def test_a_fraction_draws_whole_clients_until_they_hold_it():
    texts = [f"{i % 10}" * 50 for i in range(200)]
    clients = [f"speaker {i // 2}" for i in range(200)]
    data = from_texts(texts, clients=clients, context=10, fraction=0.1, seed=1)
    assert len(data.owners) == 10
    assert data.owner.bincount().tolist() == [91] * 10
    assert data.owners == from_texts(texts, clients=clients, context=10, fraction=0.1, seed=1).owners
    assert data.owners != from_texts(texts, clients=clients, context=10, fraction=0.1, seed=2).owners


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_tables_of_all_three_forms_are_read(tmp_path, ending):
    rows = [("Ann, said: é", "ann", "x", "old"), ("Bob did not say it", "bob", "y", "new")]
    file = tmp_path / f"lines.{ending}"
    if ending == "jsonl":
        keys = ("words", "who", "mood", "age")
        lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in rows]
    else:
        mark = "," if ending == "csv" else "\t"
        lines = [mark.join(("words", "who", "mood", "age")), *(mark.join(f'"{cell}"' for cell in row) for row in rows)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = from_table(file, text="words", client="who", label="mood", domain="age", context=20)
    assert data.name == "lines"
    assert [spell(data, i) for i in range(2)] == [rows[0][0], rows[1][0]]
    assert (data.owners, data.classes, data.domains) == (("ann", "bob"), ("x", "y"), ("old", "new"))
    file.write_text(file.read_text(encoding="utf-8").replace("mood", "label"), encoding="utf-8")
    assert from_table(file, text="words", client="who", context=20).classes == data.classes
    windows = from_table(file, text="words", client="who", label=None, context=5)
    assert windows.kind == "tokens"
    assert len(windows) == len(rows[0][0]) - 5 + len(rows[1][0]) - 5


def test_texts_are_read_from_parquet_and_between_semicolons_too(tmp_path):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    columns = {"text": ["abcd", "bcda"], "client": ["ann", "bob"]}
    parquet.write_table(arrow.table(columns), tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("text;client\nabcd;ann\nbcda;bob\n")
    for name in ("t.parquet", "t.csv"):
        data = from_table(tmp_path / name, context=3)
        assert (data.owners, [spell(data, i) for i in range(2)]) == (("ann", "bob"), ["abc", "bcd"])


def test_a_table_without_clients_has_no_owners(tmp_path):
    (tmp_path / "t.csv").write_text("text\nabcdef\n")
    assert from_table(tmp_path / "t.csv", client=None, context=2).owner is None


@pytest.mark.parametrize(
    ("name", "content", "code", "fields"),
    [
        ("t.csv", "text,who\nhello,ann\n", "value-missing", {"column": "client", "row": 1, "columns": ["text", "who"]}),
        ("t.csv", "text,client\n", "data-empty", {"what": "rows"}),
        ("t.jsonl", '{"text": "a", "client": "b"}\n[1]\n', "value-missing", {"column": "text", "row": 2}),
        ("t.jsonl", "{nonsense\n", "file-unreadable", {}),
        ("t.csv", "text,client,label\na,b,c\na,b,\n", "value-missing", {"column": "label", "row": 2}),
        ("t.csv", "text,client,label\na,b,c\na,b\n", "value-missing", {"column": "label", "row": 2}),
        ("t.tsv", "text\tclient\na\t \n", "value-missing", {"column": "client", "row": 1}),
        ("t.jsonl", '{"text": null, "client": "b"}\n', "value-missing", {"column": "text", "row": 1}),
        ("t.csv", "text,client\nshort,ann\n", "too-few-examples", {"longest": 5, "context": 80}),
    ],
)
def test_unusable_tables_are_refused(tmp_path, name, content, code, fields):
    (tmp_path / name).write_text(content)
    with raises(DataError, code, **fields):
        from_table(tmp_path / name)


def test_wrong_settings_are_refused(tmp_path):
    with raises(UsageError, "file-missing", path=str(tmp_path / "none.csv")):
        from_table(tmp_path / "none.csv")
    (tmp_path / "t.txt").write_text("text")
    with raises(UsageError, "file-ending", path=str(tmp_path / "t.txt")):
        from_table(tmp_path / "t.txt")
    with raises(UsageError, "out-of-range", context=0):
        from_texts(["abc"], context=0)
    with raises(UsageError, "out-of-range", context="ten"):
        from_texts(["abc"], context="ten")
    with raises(DataError, "wrong-count", what="clients", got=2, wanted=1):
        from_texts(["abc"], clients=["a", "b"])
    with raises(DataError, "value-missing", what="domains", row=2):
        from_texts(["abc", "def"], clients=["a", "b"], domains=["x", ""])


def test_an_empty_cell_of_a_domain_is_refused_and_an_empty_text_joined(tmp_path):
    (tmp_path / "t.csv").write_text("text,client,place\nabc,ann,x\n,ann,\n")
    assert len(from_table(tmp_path / "t.csv", context=2)) == 2
    with raises(DataError, "value-missing", column="place", row=2):
        from_table(tmp_path / "t.csv", context=2, domain="place")
    with raises(DataError, "data-empty", row=2):
        from_texts(["abc", ""], labels=["a", "b"])
