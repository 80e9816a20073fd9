"""What an installed package must do, run by an interpreter that sees no checkout: python smoke.py [light]

``light`` leaves out what needs torch. Prints the version, where it was found and the time its import takes.
"""

from __future__ import annotations

import compileall
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

start = time.process_time()
import snefy_ldl  # noqa: E402

seconds = time.process_time() - start
#: What ``import snefy_ldl`` may take.
MOST_SECONDS = 0.1


def check_package() -> None:
    """Everything is there that is no Python, and every module is Python to this interpreter."""
    root = Path(snefy_ldl.__file__).parent
    assert "site-packages" in root.parts, f"{root} is no installed package"
    for name in ("py.typed", "apps/cli/templates/page.css", "apps/serve/explorer/page/page.html"):
        assert files("snefy_ldl").joinpath(name).is_file(), name
    assert compileall.compile_dir(root, quiet=1, force=True), "a module does not compile"


def check_import() -> None:
    """The import is light."""
    heavy = {"torch", "numpy", "sklearn", "pandas"} & set(sys.modules)
    assert not heavy, f"import snefy_ldl loads {heavy}"
    assert seconds <= MOST_SECONDS, f"import snefy_ldl took {seconds:.3f} s"


def check_command() -> None:
    """The program answers."""
    program = Path(sys.executable).parent / "snefy-ldl"
    from snefy_ldl.apps.cli import app

    names = [command.name or command.callback.__name__ for command in app.registered_commands]
    assert "fit" in names, names
    for words in (["--help"], ["--version"], *([name, "--help"] for name in names)):
        answer = subprocess.run([program, *words], capture_output=True, text=True, check=True)
        assert answer.stdout, words


def check_model() -> None:
    """Models are fitted, answer, and come back from a folder."""
    from snefy_ldl import LogRatioLDL, SnefyLDL, load
    from snefy_ldl.datasets.synthetic import make_city_districts

    city = make_city_districts(n=120, random_state=0)
    for kind in (SnefyLDL(n_neurons=16, epochs=3, random_state=0), LogRatioLDL(max_iter=20, random_state=0)):
        model = kind.fit(city.X, city.D)
        with TemporaryDirectory() as folder:
            again = load(model.save(Path(folder) / "model"))
        assert (again.predict(city.X) == model.predict(city.X)).all()
        assert model.predict_interval(city.X[:5]).shape == (5, 3, 2)


check_import()
check_package()
check_command()
if "light" not in sys.argv[1:]:
    check_model()
version = ".".join(map(str, sys.version_info[:3]))
what = "without torch" if "light" in sys.argv[1:] else "with a fit"
print(f"Python {version}: snefy-ldl {snefy_ldl.__version__} works {what}; import snefy_ldl took {seconds:.4f} s of CPU")
