"""The functions that every shard runs: the Lua files of `queue/lua` as one Redis library.

Its name, and the names of its functions, carry a checksum of the source, so that clients of two
versions work side by side. A server that does not have it yet is given it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Library:
    """The library as it is loaded."""

    #: How the names of its functions begin.
    prefix: str
    #: What FUNCTION LOAD takes.
    source: str

    def function(self, name: str) -> str:
        """The name in Redis of a function, such as `enqueue`."""
        return self.prefix + name


@cache
def library() -> Library:
    """The library of this version; the same bytes as the Rust client loads."""
    folder = files("ebbtide") / "lua"

    def joined(line: str) -> str:
        parts = ((folder / f"{name}.lua").read_text(encoding="utf-8") for name in line.split())
        return "".join(parts)

    shared, blocks = (folder / "ORDER").read_text(encoding="utf-8").split("\n\n")
    code = "".join(map(joined, shared.splitlines()))
    code += "".join(f"do\n{joined(line)}end\n" for line in blocks.splitlines())
    name = f"ebbtide_{zlib.crc32(code.encode()):08x}"
    prefix = f"{name}_"
    return Library(prefix, f"#!lua name={name}\nlocal PREFIX = '{prefix}'\n{code}")
