"""YAML: files and text, numbers and texts as YAML 1.2 has them, and all that is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import optim
from optim.config import build, read
from tests.optim.config.objects import network, outline

TEXT = "optimizer:\n  AdamW: {lr: 2e-3, betas: [.5, 9e-1]}\n"
READ = {"optimizer": {"AdamW": {"lr": 0.002, "betas": [0.5, 0.9]}}}


@pytest.mark.parametrize("name", ["config.yaml", "config.yml", "config.txt", "no colon in it"])
def test_files(tmp_path, name):
    path = tmp_path / name
    path.write_text("\ufeff" + TEXT + "# große Namen: ä\n", encoding="utf-8")  # which begins as some editors do
    assert read(path) == READ
    if path.suffix in (".yaml", ".yml"):
        assert read(str(path)) == READ


@pytest.mark.parametrize(
    "text", [TEXT, TEXT.replace("\n", "\r\n"), "{optimizer: {AdamW: {lr: 2e-3, betas: [0.5, 0.9]}}}"]
)
def test_texts(text):
    assert read(text) == READ
    built = outline(build(network(), text).optimizer)
    assert built == outline(optim.AdamW(network().named_parameters(), lr=0.002, betas=(0.5, 0.9)))


@pytest.mark.parametrize(
    "written, value",
    [
        *[("1e-3", 0.001), ("1E-3", 0.001), ("1.e-3", 0.001), (".001", 0.001), ("2", 2), ("1e3", 1000.0)],
        *[("on", "on"), ("off", "off"), ("yes", "yes"), ("no", "no"), ("y", "y"), ("true", True), ("False", False)],
        *[("null", None), ("~", None), ("", None), ("'1e-3'", "1e-3"), ("10ba", "10ba"), ("0.1dur", "0.1dur")],
        *[("12:30:45", "12:30:45"), ("1e9tok", "1e9tok"), ("010", 10), ("0o10", 8), ("0x10", 16)],
    ],
)
def test_scalars_of_yaml_1_2(written, value):
    found = read(f"a: {written}\n")["a"]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    "text, message",
    [
        ("a: [1\n", "the text, line 2, column 1: while parsing a flow sequence, expected ',' or ']'"),
        ("a: 1\nb: 2\na: 3\n", 'the text, line 3, column 1: while constructing a mapping, found duplicate key "a"'),
        ("a: {b: 1, b: 1}\n", 'found duplicate key "b"'),
        ("a:\n\tb: 1\n", "cannot start any token"),
        ("a: 1\n---\nb: 2\n", "expected a single document"),
        ("a: *b\n", "found undefined alias"),
        ("params: *bias\n", "A text that begins with * is to be in quotes, as in '*bias'."),
        ("a: 2001-02-03\n", "is of type date: write a text in quotes"),
        ("a: [{b: !!binary aGVsbG8=}]\n", "a[0].b: b'hello' is of type bytes"),
        ("a: !!set {b, c}\n", "a: "),
        ("1: 2\n", "the key 1 is of type int"),
        ("a: {true: 2}\n", "a: the key True is of type bool"),
        ("a: !custom 1\n", "could not determine a constructor for the tag '!custom'"),
        ("a: \x00\n", "the text cannot be read as YAML: ReaderError"),
        ("a: !!int\n", "the text cannot be read as YAML: "),
        ("a: 2001-99-99\n", "the text cannot be read as YAML: "),
    ],
)
def test_what_is_no_config(text, message):
    with pytest.raises(ValueError) as raised:
        read(text)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.mkdir", "!!python/object/new:os.mkdir", "!!python/name:os.mkdir", "!os.mkdir"]
)
def test_nothing_is_evaluated(tmp_path, tag):
    made = tmp_path / "made"
    with pytest.raises(ValueError, match="constructor for the tag"):
        build(network(), f"optimizer: {tag} ['{made}']\n")
    assert not made.exists()


def test_names_are_not_imported():
    with pytest.raises(ValueError, match="there is no optimizer"):
        build(network(), "optimizer: {antigravity.SGD: {lr: 0.1}}\n")
    assert "antigravity" not in sys.modules


def test_anchors_and_merged_keys():
    text = "base: &base {lr: 0.1, momentum: 0.9}\noptimizer: {SGD: {<<: *base, lr: 0.2}}\n"
    assert read(text)["optimizer"] == {"SGD": {"lr": 0.2, "momentum": 0.9}}


@pytest.mark.parametrize(
    "config, error, message",
    [
        ("config", ValueError, "config='config' is neither YAML nor the name of a .yaml file"),
        ("", ValueError, "neither YAML nor the name"),
        (3, TypeError, "config=3: pass a mapping, the path of a YAML file, or YAML text"),
        (None, TypeError, "config=None"),
        ([("optimizer", "SGD")], TypeError, "config=[('optimizer', 'SGD')]"),
        ("- optimizer: SGD\n", TypeError, "write a mapping with 'optimizer' and 'schedulers'"),
        ("# nothing: here\n", TypeError, "config=None: write a mapping"),
        ("missing.yaml", FileNotFoundError, "missing.yaml"),
        (Path("missing"), FileNotFoundError, "missing"),
    ],
)
def test_other_configs(config, error, message):
    with pytest.raises(error) as raised:
        build(network(), config)
    assert message in str(raised.value)


def test_without_the_library():
    """In a process that cannot import it, YAML is refused with a hint, and mappings are built."""
    program = """
import sys
sys.modules["ruamel"] = sys.modules["ruamel.yaml"] = None  # what import makes of a module that is not to be had
import torch
from optim.config import build
model = torch.nn.Linear(2, 2)
print(type(build(model, {"optimizer": {"SGD": {"lr": 0.1}}}).optimizer).__name__)
try:
    build(model, "optimizer: {SGD: {lr: 0.1}}")
except ImportError as error:
    print(error)
"""
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ).stdout
    assert found.splitlines()[0] == "SGD" and "pip install 'torch-timesched[config]'" in found


@pytest.mark.parametrize(
    "config, message",
    [({"a": {1: 2}}, "a: the key 1 is of type int: write a text"), ({torch.nn.Linear: 1}, "config: the key <class")],
)
def test_keys_of_mappings(config, message):
    with pytest.raises(ValueError) as raised:
        read(config)
    assert message in str(raised.value)


DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1), DATA, max_size=4))
def test_a_mapping_is_copied(config):
    found = read(config)
    assert found == config and found is not config
    assert not any(found[key] is value for key, value in config.items() if isinstance(value, (list, dict)))


@given(
    lr=st.floats(0, 1e6), eps=st.floats(0, 1), tag=st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1)
)
def test_numbers_and_tags_survive_yaml(lr, eps, tag):
    config = {"optimizer": {"AdamW": {"lr": lr, "eps": eps, "params": [{"params": "bias", "tags": tag}]}}}
    assert read(json.dumps(config, ensure_ascii=False)) == config  # JSON is YAML
