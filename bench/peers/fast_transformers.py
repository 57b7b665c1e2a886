# SPDX-License-Identifier: Apache-2.0
"""Installs the one compiled part of pytorch-fast-transformers that performer-pytorch can use, its
causal product, into the environment of the running interpreter. The whole package takes ten
minutes to compile and has no wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

SOURCE = "pytorch-fast-transformers==0.4.0"
PARTS = ("__init__.py", "causal_product/__init__.py", "causal_product/causal_product_cpu.cpp")
FLAGS = ["-O3", "-fopenmp", "-ffast-math"]  # the package's own


def install() -> None:
    from torch.utils import cpp_extension

    target = Path(sysconfig.get_paths()["purelib"]) / "fast_transformers"
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        pip += ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", folder]
        subprocess.run([*pip, SOURCE], check=True, stdin=subprocess.DEVNULL)
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
        (package,) = Path(folder).glob("*/fast_transformers")
        (Path(folder) / "build").mkdir()
        cpp_extension.load(
            "causal_product_cpu",
            [str(package / PARTS[-1])],
            extra_cflags=FLAGS,
            build_directory=f"{folder}/build",
            is_python_module=False,
        )
        shutil.rmtree(target, ignore_errors=True)
        (target / "causal_product").mkdir(parents=True)
        for part in PARTS[:-1]:
            shutil.copy(package / part, target / part)
        shutil.copy(Path(folder) / "build/causal_product_cpu.so", target / "causal_product")


if __name__ == "__main__":
    install()
