#!/usr/bin/env bash
# Install the library with the oldest versions that pyproject.toml allows, then fit, predict and print every help text:
#   tools/check_floors.sh [PYTHON [NAME==VERSION ...]]     PYTHON: python3 by default
# NAME==VERSION replaces a floor that the index at hand does not have.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(command -v "${1:-python3}")
shift || true
checkout=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" - "$@" >"$work/floors.txt" <<'PY'
import re
import sys
from pathlib import Path

text = Path("pyproject.toml").read_text(encoding="utf-8")
needed = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE).group(1)
needed += re.search(r"^data = \[(.*)\]$", text, re.MULTILINE).group(1)
floors = dict(re.findall(r'"([\w-]+)>=([\d.]+)"', needed)) | dict(pin.split("==") for pin in sys.argv[1:])
print("\n".join(f"{name}=={version}" for name, version in floors.items()))
PY
cat "$work/floors.txt"
mkdir "$work/source" && git ls-files -z | tar --null -T - -cf - | tar -xf - -C "$work/source"
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check -c "$work/floors.txt" "$work/source[data]"
cd "$work"
export OMP_NUM_THREADS=1
env -u PYTHONPATH venv/bin/python "$checkout/tools/smoke.py"
sed -n '/^```python$/,/^```$/{/^```$/q;/^```/d;p}' "$checkout/README.md" >quick_start.py
env -u PYTHONPATH venv/bin/python quick_start.py
echo "the oldest allowed versions work"
