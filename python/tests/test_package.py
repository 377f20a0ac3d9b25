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


@pytest.mark.parametrize("record", ["unit", "group"])
def test_fields_of_records_are_those_of_the_reference_of_the_wire(record: str) -> None:
    """Numbers in WIRE.md against the constants that follow the comment in the prelude."""
    prelude = (LUA / "prelude.lua").read_text()
    below = prelude.split(f"-- Fields of a {record}'s record", 1)[1]
    fields: dict[str, int] = {}
    for line in below.splitlines()[1:]:
        constants = re.fullmatch(r"local ([A-Z_, ]+) = ([\d, ]+)", line)
        if constants:
            names, numbers = (part.split(", ") for part in constants.groups())
            fields.update(zip(map(str.lower, names), map(int, numbers), strict=True))
        elif fields:
            break
    table = WIRE.split(f"**{record.capitalize()}.**", 1)[1].split("\n\n", 3)[1]
    described = {name: int(number) for number, name in re.findall(r"(\d+) `(\w+)`", table)}
    assert described == fields
