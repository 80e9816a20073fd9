#!/usr/bin/env bash
# Build wheel and sdist, and install them away from the checkout:
#   tools/check_wheel.sh [PYTHON]     PYTHON: an interpreter that has torch and the rest (.venv/bin/python)
# - into an environment of that interpreter, which borrows its packages and nothing else; a model is fitted there;
# - on the oldest and the newest supported Python of this machine, without torch: a gigabyte or more for each would take minutes.
#   WHEEL_TEST=full installs torch there, too, and fits.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "${1:-.venv/bin/python}")
checkout=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip="-m pip install -q --disable-pip-version-check"
# environments without a pip of their own, which would take seconds each: the first interpreter's installs into them
into() { local place=$1; shift; "$python" -m pip --python "$place/bin/python" install -q --disable-pip-version-check "$@"; }

"$python" -c 'import build.__main__' 2>/dev/null || "$python" $pip build
git ls-files -z | tar --null -T - -cf - | tar -xf - -C "$(mkdir -p "$work/source" && echo "$work/source")"  # no leftovers of earlier builds
"$python" -m build --outdir "$work/dist" "$work/source" >"$work/build.log" 2>&1 || { tail -20 "$work/build.log"; exit 1; }
wheel=$(ls "$work"/dist/*.whl) sdist=$(ls "$work"/dist/*.tar.gz)
echo "wheel $(du -k "$wheel" | cut -f1) kB, sdist $(du -k "$sdist" | cut -f1) kB"
cd "$work"

# the interpreter's own packages, but never its copy of the library
"$python" -m venv --without-pip borrowed
site=$(borrowed/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/borrowed.pth"
into borrowed --no-deps --ignore-installed "$wheel"
env -u PYTHONPATH OMP_NUM_THREADS=1 borrowed/bin/python "$checkout/tools/smoke.py"
into borrowed --no-deps --force-reinstall "$sdist"
env -u PYTHONPATH OMP_NUM_THREADS=1 borrowed/bin/python "$checkout/tools/smoke.py" light

usable=()
for minor in 10 11 12 13 14; do
  for place in "python3.$minor" "$HOME"/.pyenv/versions/3.$minor.*/bin/python; do
    if command -v "$place" >/dev/null && "$place" -c 'import venv' 2>/dev/null; then usable+=("$place"); break; fi
  done
done
[ ${#usable[@]} -gt 0 ] || { echo "no other Python is here"; exit 0; }
ends=("${usable[0]}"); [ ${#usable[@]} -gt 1 ] && ends+=("${usable[-1]}")
for other in "${ends[@]}"; do
  rm -rf clean && "$other" -m venv --without-pip clean
  if [ "${WHEEL_TEST:-light}" = full ]; then
    into clean -c "$checkout/constraints.txt" "$wheel"
    env -u PYTHONPATH OMP_NUM_THREADS=1 clean/bin/python "$checkout/tools/smoke.py"
  else
    "$python" - "$wheel" >needs.txt <<'PY'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(name for name in wheel.namelist() if name.endswith("METADATA"))
    lines = wheel.read(name).decode().splitlines()
needs = [line.split(": ", 1)[1] for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line]
print("\n".join(need for need in needs if not need.startswith("torch")))
PY
    into clean -r needs.txt
    into clean --no-deps "$wheel"
    env -u PYTHONPATH OMP_NUM_THREADS=1 clean/bin/python "$checkout/tools/smoke.py" light
  fi
done
