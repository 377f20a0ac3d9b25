"""The package as it is shipped, and the reference of the wire beside the code it describes."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from servers import leave_out

import ebbtide
from ebbtide.library import library
from ebbtide.link import SHARD_KEYS

ROOT = Path(__file__).parents[2]
LUA = ROOT / "queue" / "lua"
WIRE = (ROOT / "queue" / "WIRE.md").read_text()


def test_wheel_carries_the_scripts_of_the_queue(tmp_path: Path) -> None:
    if importlib.util.find_spec("hatchling") is None:
        leave_out("hatchling is not installed; tests/run installs it")
    words = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    subprocess.run(
        [sys.executable, *words, "--wheel-dir", tmp_path, ROOT / "python"],
        check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("ebbtide-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = {
            Path(name).name: archive.read(name)
            for name in archive.namelist()
            if name.startswith("ebbtide/lua/")
        }
        assert "ebbtide/py.typed" in archive.namelist()
    assert shipped == {path.name: path.read_bytes() for path in LUA.iterdir()}


def test_version_is_that_of_the_workspace() -> None:
    workspace = re.search(r'(?m)^version = "(.*)"', (ROOT / "Cargo.toml").read_text())
    package = re.search(r'(?m)^version = "(.*)"', (ROOT / "python/pyproject.toml").read_text())
    assert workspace and package
    assert ebbtide.__version__ == package[1] == workspace[1]


def test_every_name_that_is_exported_exists_once() -> None:
    assert len(set(ebbtide.__all__)) == len(ebbtide.__all__)
    for name in ebbtide.__all__:
        assert hasattr(ebbtide, name)


def test_every_function_and_key_is_in_the_reference_of_the_wire() -> None:
    functions = re.findall(r"register(?:_control)?\('(\w+)'", library().source)
    assert len(functions) > 20
    for name in functions:
        assert re.search(rf"(?m)^\| `{name}` \|", WIRE), f"WIRE.md has no row for {name}"
    for key in SHARD_KEYS:
        assert f"`{key}`" in WIRE, f"WIRE.md does not know the key {key}"


FIELDS = r"(?m)^local ([A-Z_, ]+) = (\d[\d, ]*)$"


def test_records_are_those_of_the_reference_of_the_wire() -> None:
    """Formats and the order of the fields in WIRE.md against the constants in the prelude."""
    prelude = (LUA / "prelude.lua").read_text()
    formats = re.findall(r"'(>\w+)'", prelude.split("-- States of a slot", 1)[0])
    of_unit, of_group = prelude.split("-- Fields of a unit", 1)[1].split("-- Fields of a group", 1)
    formats += re.findall(r"GROUP_RECORD = '(>\w+)'", of_group)
    unit = WIRE.split("**Unit.**", 1)[1].split("**Group.**", 1)[0]
    group = WIRE.split("**Group.**", 1)[1].split("**Place in a ready queue**", 1)[0]
    assert re.findall(r"`(>\w+)`", unit + group) == formats
    parts = re.findall(r"(?m)^\| \w+ \| `>.*` \| (.*) \|$", unit)
    described = re.findall(r"`(\w+)`", " ".join(parts))
    assert described == fields_in(of_unit.split("-- States of a slot", 1)[0], "STATE")
    rows = re.findall(r"(?m)^\| (`.*`) \|", group)
    terms = of_group.split("-- Fields of the terms", 1)[0]
    assert re.findall(r"`(\w+)`", " ".join(rows)) == fields_in(terms, "SEQUENCE")


def fields_in(lua: str, first: str) -> list[str]:
    """The fields that the constants number, from `first` on, in the order of their numbers."""
    numbered: dict[str, int] = {}
    for names, numbers in re.findall(FIELDS, lua):
        numbered.update(zip(names.split(", "), map(int, numbers.split(", ")), strict=True))
    ordered = sorted(numbered, key=lambda name: numbered[name])
    return [name.lower() for name in ordered if numbered[name] >= numbered[first]]
