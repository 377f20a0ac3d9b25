"""Brings the contestants to target/bench/peers; what is there in the wanted version is reused."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BENCH = ROOT / "target/bench"
PEERS = BENCH / "peers"
CARGO_TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", BENCH / "cargo")

# How to get the programs that the benchmark expects on PATH, on Debian and its relatives.
HOW = {
    "cargo": "install the Rust toolchain (see README.md)",
    "npm": "apt-get install nodejs npm (Node 20 or newer)",
    "redis-server": "apt-get install redis-server",
}


def require(program):
    if shutil.which(program) is None:
        sys.exit(f"benches/queue/run: {program} is not on PATH: {HOW[program]}")


def version_of(program):
    """What the program says of itself, in one line."""
    return subprocess.run([program, "--version"], capture_output=True, text=True).stdout.strip()


def python_environment(peer):
    """The Python of a virtual environment with exactly the peer's requirements."""
    folder, requirements = PEERS / peer, HERE / "peers" / peer / "requirements.txt"
    python = folder / "bin/python"
    if not is_installed(folder, requirements):
        print(f"installing {peer} in {os.path.relpath(folder, ROOT)}", flush=True)
        run([sys.executable, "-m", "venv", "--clear", folder], "apt-get install python3-venv")
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        run([*pip, "--requirement", requirements])
        mark_installed(folder, requirements)
    return python


def node_modules(peer):
    """The folder of modules with exactly the versions in the peer's package.json."""
    require("npm")
    folder, package = PEERS / peer, HERE / "peers" / peer / "package.json"
    if not is_installed(folder, package):
        print(f"installing {peer} in {os.path.relpath(folder, ROOT)}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(package, folder)
        options = ["--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"]
        run(["npm", "install", *options, "--loglevel=error", "--prefix", folder])
        mark_installed(folder, package)
    return folder / "node_modules"


def cargo_binary(package, name):
    """Builds a driver that is a package of its own; cargo itself reuses what is up to date."""
    require("cargo")
    print(f"building {name}", flush=True)
    manifest = HERE / package / "Cargo.toml"
    environment = {**os.environ, "CARGO_TARGET_DIR": str(CARGO_TARGET)}
    run(["cargo", "build", "--release", "--quiet", "--manifest-path", manifest], env=environment)
    return CARGO_TARGET / "release" / name


def ebbtide_binary():
    """Builds the program that is measured."""
    require("cargo")
    print("building ebbtide", flush=True)
    target = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
    run(["cargo", "build", "--release", "--quiet", "--bin", "ebbtide"])
    return target / "release/ebbtide"


def pinned_version(manifest, package):
    """The exact version of a package in a peer's manifest, of whatever kind that is."""
    text = (HERE / "peers" / manifest).read_text()
    return re.search(rf'^\W*{package}\W+([0-9.]+)', text, re.MULTILINE).group(1)


def is_installed(folder, manifest):
    marker = folder / "installed"
    return marker.exists() and marker.read_text() == manifest.read_text()


def mark_installed(folder, manifest):
    (folder / "installed").write_text(manifest.read_text())


def run(command, how=None, env=None):
    answer = subprocess.run(list(map(str, command)), cwd=ROOT, env=env)
    if answer.returncode != 0:
        hint = f"; perhaps: {how}" if how else ""
        sys.exit(f"benches/queue/run: {command[0]} exited with {answer.returncode}{hint}")
