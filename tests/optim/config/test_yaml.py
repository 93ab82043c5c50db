"""YAML: files and text, numbers and texts as YAML 1.2 has them, and all that is refused."""

import sys

import pytest

from optim.config import build, read
from tests.optim.config.objects import network

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


@pytest.mark.parametrize(
    "written, value",
    [
        *[("1e-3", 0.001), ("1E-3", 0.001), ("1.e-3", 0.001), (".001", 0.001), ("2", 2), ("1e3", 1000.0)],
        *[("on", "on"), ("off", "off"), ("yes", "yes"), ("no", "no"), ("y", "y"), ("true", True), ("False", False)],
        *[("null", None), ("~", None), ("", None), ("'1e-3'", "1e-3"), ("10ba", "10ba"), ("0.1dur", "0.1dur")],
        *[("12:30:45", "12:30:45"), ("1e9tok", "1e9tok"), ("010", 10), ("0o10", 8), ("0x10", 16)],
        *[("\n - &b {c: 1}\n - {<<: *b, d: 2}", [{"c": 1}, {"c": 1, "d": 2}])],
    ],
)
def test_values_of_yaml_1_2(written, value):
    found = read(f"a: {written}\n")["a"]
    assert found == value and type(found) is type(value)


CIRCLE = {"optimizer": {"SGD": {}}}
CIRCLE["optimizer"]["SGD"]["lr"] = [CIRCLE["optimizer"]]

CONFIGS = [
    ("config", ValueError, "config='config': this is not YAML"),
    (3, TypeError, "config=3: this is no config"),
    ("missing.yaml", FileNotFoundError, "missing.yaml"),
    ("- optimizer: SGD\n", TypeError, "config=[{'optimizer': 'SGD'}]"),
    ("# nothing: here\n", TypeError, "config=None: this is not a mapping"),
    ("a: [1\n", ValueError, "the text, line 2, column 1: while parsing"),
    ("a: 1\nb: 2\na: 3\n", ValueError, "found duplicate key"),
    ("a:\n\tb: 1\n", ValueError, "cannot start any token"),
    ("a: 1\n---\nb: 2\n", ValueError, "expected a single document"),
    ("params: *bias\n", ValueError, "Put a string that begins with * in quotes"),
    ("a: 2001-02-03\n", ValueError, "a=datetime.date(2001, 2, 3): the type"),
    ("a: [{b: !!binary aGVsbG8=}]\n", ValueError, "a[0].b=b'hello': the type bytes"),
    ("1: 2\n", ValueError, "config: the key 1 is of type int"),
    ({"a": [{int: 2}]}, ValueError, "a[0]: the key <class 'int'> is of type type"),
    ("a: \x00\n", ValueError, "the text: this is not valid YAML. Reader"),
    ("optimizer: !!python/object/apply:os.mkdir ['made']\n", ValueError, "could not determine a constructor"),
    ("optimizer: {antigravity.SGD: {lr: 0.1}}\n", ValueError, "there is no optimizer"),
    (CIRCLE, ValueError, "optimizer.SGD.lr[0].SGD.lr[0]"),
    ("a: 1\nb: &all [{c: *all}]\n", ValueError, "more than 100 levels"),
    ("optimizer: {SGD: {lr: 0.1, enable_global_step: no}}\n", TypeError,
     "enable_global_step='no'"),
]  # fmt: skip


@pytest.mark.parametrize("config, error, message", CONFIGS, ids=range(len(CONFIGS)))
def test_what_is_no_config(tmp_path, monkeypatch, config, error, message):
    """Nothing of it is evaluated or imported."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error) as raised:
        build(network(), config)
    assert message in str(raised.value)
    assert list(tmp_path.iterdir()) == [] and "antigravity" not in sys.modules


def test_containers_that_are_there_twice_are_no_circle():
    shared = [1, {"a": 2}]
    assert read({"b": shared, "c": {"d": shared}}) == {"b": [1, {"a": 2}], "c": {"d": [1, {"a": 2}]}}
    assert read("b: &x [1, 2]\nc: {d: *x, e: *x}\n") == {"b": [1, 2], "c": {"d": [1, 2], "e": [1, 2]}}


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)  # what import makes of a module that is not to be had
    found = read(READ)  # a mapping is copied, as deep as it goes
    assert found == READ and found["optimizer"]["AdamW"]["betas"] is not READ["optimizer"]["AdamW"]["betas"]
    with pytest.raises(ImportError, match="pip install ruamel.yaml"):
        read(TEXT)


# The size of a config


def nested(levels):
    inner = config = {}
    for _ in range(levels - 1):
        inner["a"] = inner = {}
    return config


def test_a_config_may_have_100_levels():
    assert read(nested(100)) == nested(100)


@pytest.mark.parametrize(
    ("config", "place"),
    [
        (nested(102), r"a\.a\.a\.a.*: the config has .* more than 100 levels"),
        (nested(2000), r"a\.a\.a\.a.*: the config has .* more than 100 levels"),
        ("a: " + "[" * 2000 + "]" * 2000 + "\n", "the text: this is not valid YAML. RecursionError"),
        ({"a": [0] * 100_001}, r"a\[99998\]: the config has more than 100000 values"),
    ],
    ids=["102 levels", "2,000 levels", "2,000 levels of YAML", "100,001 values"],
)
def test_a_config_that_is_too_large(config, place):
    with pytest.raises(ValueError, match=place):
        read(config)


def test_aliases_in_aliases():
    """Each line has nine times the values of the line before."""
    lines = [f"{key}: &{key} [{', '.join([f'*{before}'] * 9)}]" for before, key in zip("abcdefgh", "bcdefghi")]
    with pytest.raises(ValueError, match="Aliases in aliases may multiply its values"):
        read("\n".join(["a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9]", *lines]))
