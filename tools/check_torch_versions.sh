#!/usr/bin/env bash
# One binary for many torch versions: builds a wheel with the torch of the development environment, installs that very wheel
# beside another torch in an environment of its own, and runs the operator tests there. Nothing is compiled a second time.
#
#   tools/check_torch_versions.sh [torch version] [folder]
#
# Default: torch 2.14.1 in a new folder under $TMPDIR. On Linux that is the CUDA build of torch, several gigabytes; the folder
# is kept when you name it and removed otherwise. PYTHON (default .venv/bin/python) makes the environment, PIP_ARGS go to pip,
# TESTS (default tests/ops) are run.
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=${1:-2.14.1}
folder=${2:-}
python=${PYTHON:-.venv/bin/python}
read -r -a pip_args <<<"${PIP_ARGS:-}"
read -r -a tests <<<"${TESTS:-tests/ops}"

if [ ! -x "$python" ]; then
  echo "$python does not exist: run 'make build' first, or set PYTHON" >&2
  exit 1
fi
if [ -z "$folder" ]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
fi
mkdir -p "$folder"

echo "== wheel, built against torch $("$python" -c 'import torch; print(torch.__version__)')"
rm -rf "$folder/wheel"
"$python" -m pip -q wheel --no-build-isolation --no-deps -w "$folder/wheel" .

echo "== environment with torch $torch_version"
other="$folder/venv/bin/python"
test -x "$other" || "$python" -m venv "$folder/venv"
# The pins of the tests, without torch and without what only builds, lints or draws.
sed -E '/^(#|$)/d; /^(torch|setuptools|cmake|ninja|pybind11|ruff|mypy|clang-format|matplotlib)==/d' \
  requirements/dev.txt >"$folder/requirements.txt"
"$other" -m pip -q --disable-pip-version-check install "${pip_args[@]}" "torch==$torch_version" -r "$folder/requirements.txt"
"$other" -m pip -q --disable-pip-version-check install --no-deps --force-reinstall "$folder"/wheel/pairloom-*.whl

# Run from a copy of the tests: from the checkout, `import pairloom` could find the sources instead of the wheel.
rm -rf "$folder/run"
mkdir "$folder/run"
cp -r tests pyproject.toml "$folder/run/"
cd "$folder/run"
echo "== what runs"
"$other" - <<'PYTHON'
import pairloom._build_info as info

facts = info.build_facts()
print(f"built against torch {facts['torch_built']}, running torch {facts['torch_running']}, {facts['libraries']['operators']}")
assert "site-packages" in facts["libraries"]["operators"], "the sources are tested, not the wheel"
PYTHON
echo "== ${tests[*]}"
"$other" -m pytest "${tests[@]}" -p no:cacheprovider -q
