"""The key policy: the table of its docstring, and what holds for every key."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_airflow.core import data
from ffdl_airflow.core.data import Entry, KeyRefused, judge_key, select
from ffdl_airflow.testing.contracts.store import ODD_KEYS

segments = st.text(alphabet=st.sampled_from("ab./\\ %+é\u0301\0\n$:"), max_size=12)
keys = st.one_of(segments, st.text(max_size=300), st.just("a_$folder$"), st.just("../../etc/x"))
entries = st.builds(Entry, key=keys, size=st.integers(0, 3), version=st.just("1"))


def entry(key: str, size: int = 1) -> Entry:
    return Entry(key=key, size=size, version="1")


@pytest.mark.parametrize("key", [*ODD_KEYS, "C:\\x", "con", "a\nb", "...", "..a", "a..", " ", "~"])
def test_ordinary_keys_are_taken(key):
    assert judge_key(key, 1) == data.TAKE
    assert list(select([entry(key)]).files) == [key]


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("../../etc/cron.d/x", data.KEY_ESCAPES),
        ("./a", data.KEY_ESCAPES),
        ("a/../b", data.KEY_ESCAPES),
        ("..", data.KEY_ESCAPES),
        ("a/..", data.KEY_ESCAPES),
        ("a/./", data.KEY_ESCAPES),
        ("/etc/passwd", data.KEY_EMPTY_NAME),
        ("a//b", data.KEY_EMPTY_NAME),
        ("/", data.KEY_EMPTY_NAME),
        ("a\0b", data.KEY_NUL),
        ("a\udcff", data.KEY_NOT_TEXT),
        ("x" * 300 + ".bin", data.KEY_TOO_LONG),
        ("é" * 128, data.KEY_TOO_LONG),
        ("/".join(["x" * 200] * 11), data.KEY_TOO_LONG),
    ],
)
def test_e06_dangerous_keys_refuse_the_whole_data_set(key, code):
    with pytest.raises(KeyRefused) as caught:
        select([entry("good"), entry(key)])
    assert caught.value.code == code
    assert str(caught.value).isascii()
    assert len(str(caught.value)) < 260


def test_the_message_has_the_escaped_key():
    with pytest.raises(KeyRefused, match=r"'a\\x00b' has a NUL"):
        select([entry("a\0b")])


@pytest.mark.parametrize("shuffle", [1, -1])
def test_e02_markers_make_folders_and_do_not_count(shuffle):
    listing = [entry("data/", 0), entry("data/img/", 0), entry("data/img/1.jpg", 812),
               entry("data_$folder$", 0), entry("", 0), entry("notes/", 5)]  # fmt: skip
    found = select(listing[::shuffle])
    assert list(found.files) == ["data/img/1.jpg"]
    assert found.size_bytes == 812
    assert found.directories == {"data", "data/img"}
    assert found.warnings == ("'notes/' ends in / and has 5 bytes; left out",)


def test_a_folder_marker_with_bytes_is_a_file():
    assert list(select([entry("data_$folder$", 3)]).files) == ["data_$folder$"]


@pytest.mark.parametrize("other", ["data/train/a.rec", "data/train/"])
@pytest.mark.parametrize("shuffle", [1, -1])
def test_e01_an_object_and_a_folder_of_one_name_clash(other, shuffle):
    listing = [entry("data/train"), entry("data/train2/b.rec"), entry(other, 0)]
    with pytest.raises(KeyRefused, match="is a file, and a folder for") as caught:
        select(listing[::shuffle])
    assert (caught.value.code, caught.value.key) == (data.KEY_CLASH, "data/train")


def test_one_key_twice_takes_the_last_and_warns():
    found = select([entry("a", 1), entry("a", 2)])
    assert found.files["a"].size == 2
    assert found.warnings == ("'a' is there twice; the last one is used",)


@given(keys, st.integers(0, 2))
def test_nothing_maps_outside_and_no_character_changes(key, size):
    try:
        verdict = judge_key(key, size)
    except KeyRefused:
        return
    if verdict != data.TAKE:
        return
    path = PurePosixPath("/cache/data") / key
    assert str(path) == f"/cache/data/{key}"
    assert ".." not in path.parts
    assert max(len(part.encode()) for part in path.parts) <= 255


@given(st.lists(entries, max_size=8))
def test_distinct_keys_stay_distinct_files(listing):
    try:
        found = select(listing)
    except KeyRefused:
        return
    taken = {e.key for e in listing if judge_key(e.key, e.size) == data.TAKE}
    assert found.files.keys() == taken
    # No file is a folder of another: all of them can be made in one tree.
    folders = {str(p) for key in taken for p in PurePosixPath(key).parents} | found.directories
    assert not folders & taken


@given(st.lists(st.tuples(st.text(max_size=5), st.integers(0, 9)), unique_by=lambda f: f[0]))
def test_the_same_bytes_are_the_same_generation_in_any_order(listing):
    files = [data.GenerationFile(key=k, size=n, sha256=f"{n:064x}", version=k) for k, n in listing]
    other = [file.model_copy(update={"version": "other"}) for file in reversed(files)]
    assert data.generation_id(files) == data.generation_id(other)
    assert len(data.generation_id(files)) == 16


def test_a_line_end_in_a_key_cannot_forge_another_file():
    one = data.GenerationFile(key='a",1,"x"]\n["b', size=1, sha256="0" * 64, version="")
    two = [one.model_copy(update={"key": key}) for key in ("a", "b")]
    assert data.generation_id([one]) != data.generation_id(two)
