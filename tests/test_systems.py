"""What differs between Linux, macOS and Windows: missing modules, files that are held, letters a code page lacks."""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from snefy_ldl._internal import files
from snefy_ldl._internal.files import write_bytes
from snefy_ldl.apps.cli import main

#: Modules that some system lacks, and names that Windows lacks in modules which every system has.
MODULES = ("fcntl", "msvcrt", "resource", "pwd", "grp", "termios", "tty", "pty", "posix", "uvloop")
NAMES = {
    "os": "fork getuid geteuid getgid killpg setsid nice uname statvfs sched_getaffinity sysconf wait3 O_DIRECTORY",
    "signal": "SIGKILL SIGALRM SIGHUP SIGUSR1 SIGUSR2 alarm setitimer pthread_sigmask",
    "socket": "AF_UNIX SO_REUSEPORT",
}
#: Fits, saves, loads and asks, with all that taken away from the modules of the library.
PROGRAM = """
import builtins, importlib, os, pkgutil, signal, socket, sys, tempfile
import joblib, numpy, scipy.stats, sklearn.linear_model, torch, typer.testing
modules, names = {modules!r}, {names!r}
usual = builtins.__import__
def without(name, globals=None, *more, **named):
    if name.partition(".")[0] in modules and (globals or {{}}).get("__name__", "").startswith("snefy_ldl"):
        raise ImportError(f"no module named {{name!r}}", name=name)
    return usual(name, globals, *more, **named)
builtins.__import__ = without
class Without:
    def __init__(self, module, gone):
        self.__dict__.update({{k: v for k, v in vars(module).items() if k not in gone}})
import snefy_ldl
core = ("_internal", "apps", "datasets", "learners", "networks", "training")
for package in core:
    top = importlib.import_module(f"snefy_ldl.{{package}}")
    for module in pkgutil.walk_packages(top.__path__, f"{{top.__name__}}."):
        importlib.import_module(module.name)
for name, module in list(sys.modules.items()):
    if name.startswith("snefy_ldl"):
        for short, gone in names.items():
            if getattr(module, short, None) is sys.modules[short]:
                setattr(module, short, Without(sys.modules[short], gone.split()))
from snefy_ldl import SnefyLDL
X = numpy.random.default_rng(0).normal(size=(40, 2))
D = numpy.random.default_rng(1).dirichlet([2, 2, 2], 40)
model = SnefyLDL(epochs=1, guides=None, random_state=0).fit(X, D)
with tempfile.TemporaryDirectory() as folder:
    model.save(folder); model.save(folder)
    numpy.testing.assert_array_equal(SnefyLDL.load(folder).predict(X), model.predict(X))
    assert model.predict_interval(X).shape == (40, 3, 2)
    said = typer.testing.CliRunner().invoke(snefy_ldl.apps.cli.app, ["info", folder])
    assert said.exit_code == 0, said.output
print("all went well")
"""


@pytest.mark.slow
def test_the_core_works_without_what_windows_lacks() -> None:
    program = PROGRAM.format(modules=MODULES, names=NAMES)
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "all went well" in done.stdout


def test_a_file_that_is_being_read_is_replaced_a_moment_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, refused = os.replace, []

    def busy(source: str, target: Path) -> None:
        if len(refused) < 3:
            refused.append(target)
            raise PermissionError("in use by another process")
        usual(source, target)

    monkeypatch.setattr(files.os, "replace", busy)
    write_bytes(tmp_path / "model.json", b"new")
    assert (tmp_path / "model.json").read_bytes() == b"new"
    assert len(refused) == 3
    refused.clear()
    monkeypatch.setattr(files.os, "replace", lambda source, target: busy(source, refused.clear() or target))
    with pytest.raises(PermissionError, match="in use"):  # not for ever, and without a trace
        write_bytes(tmp_path / "other.json", b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json"]


def test_letters_that_a_code_page_lacks_stop_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output that goes to a file is in cp1252 on many Windows machines, which has no arrows."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(np.hstack([rng.normal(size=(20, 1)), rng.dirichlet([1, 1], 20)]), columns=["x", "a", "b"])
    table.to_csv(tmp_path / "t.csv", index=False)
    words = ["compare", str(tmp_path / "t.csv"), "--labels", "a,b", "--learners", "SABFGS", "--folds", "2", "-q"]
    written = io.BytesIO()
    monkeypatch.setattr(sys, "argv", ["snefy-ldl", *words])
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding="cp1252"))
    monkeypatch.setattr(gc, "set_threshold", lambda *numbers: None)
    with pytest.raises(SystemExit) as ended:
        main()
    sys.stdout.flush()
    assert ended.value.code == 0
    assert b"SABFGS" in written.getvalue()
