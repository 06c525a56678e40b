#!/bin/bash
# PYTHONPATH does not reach a second checkout of a package that scikit-build-core installed as editable.
#
# Version: scikit-build-core 1.1.2 (the default mode of editable installs, "redirect"); beside it setuptools 80.9.0.
# Behaviour: the installed .pth file puts a finder of its own before all others in `sys.meta_path`. It knows the package's
#   modules by name, so `import` takes the checkout that was installed, whatever PYTHONPATH and the working directory say.
#   An editable install by setuptools adds a path behind those of PYTHONPATH instead.
# Seen: "setuptools: second", "scikit-build-core: first".
# Why it matters to us: tests that are run in another worktree, with PYTHONPATH set to it, pass or fail by the code of the
#   first one, without a word. CONTRIBUTING says how to test a second checkout.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" --disable-pip-version-check -q)
"${pip[@]}" install scikit-build-core==1.1.2 cmake==4.1.2 ninja==1.13.0 setuptools==80.9.0
for backend in setuptools scikit-build-core; do
  for checkout in first second; do
    place="$folder/$backend/$checkout"
    mkdir -p "$place/sample"
    echo "CHECKOUT = '$checkout'" > "$place/sample/__init__.py"
    module=setuptools.build_meta
    test "$backend" = setuptools || module=scikit_build_core.build
    printf '[build-system]\nrequires = []\nbuild-backend = "%s"\n[project]\nname = "sample"\nversion = "1.0"\n' "$module" \
      > "$place/pyproject.toml"
    printf 'cmake_minimum_required(VERSION 3.21)\nproject(sample LANGUAGES NONE)\n' > "$place/CMakeLists.txt"
  done
  "${pip[@]}" install --no-build-isolation --no-deps --force-reinstall -e "$folder/$backend/first"
  imported=$(cd "$folder" && PYTHONPATH="$folder/$backend/second" "$folder/venv/bin/python" -c 'import sample; print(sample.CHECKOUT)')
  echo "$backend: $imported"
  expected=first
  test "$backend" = scikit-build-core || expected=second
  test "$imported" = "$expected" || { echo "changed: expected $expected"; exit 1; }
done
