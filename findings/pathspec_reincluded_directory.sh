#!/bin/bash
# pathspec: a negation of a directory brings back files that Git still ignores.
#
# Version: pathspec 1.1.1 and 0.12.1 (git 2.39.5).
# Behaviour: with the patterns "build/" and "!src/", Git ignores src/build/x: "!src/" is about the directory src alone, and
#   "build/" matches src/build. GitIgnoreSpec, which its documentation says replicates Git, takes a pattern of a directory
#   for one of every file below it, so the later negation wins and the file is not ignored.
# Seen: git check-ignore names src/build/x and b/a/x; GitIgnoreSpec.match_file is False for both.
# Why it matters to us: files that `.gitignore` names must not reach a datastore (secrets, builds).
#   build_index/readers/gitignore.py takes the expressions of single patterns from pathspec, matches each file and directory
#   in full, and does not look into ignored directories; random trees are compared with `git ls-files`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
differ=0
for version in 1.1.1 0.12.1; do
  "$folder/venv/bin/pip" install -q --disable-pip-version-check "pathspec==$version"
  "$folder/venv/bin/python" - "$folder/tree-$version" <<'PYTHON' || differ=1
import subprocess
import sys
from pathlib import Path

import pathspec

top = Path(sys.argv[1])
cases = {"src/build/x": ["build/", "!src/"], "b/a/x": ["a", "!b/"], "keep/x.log": ["*.log", "!keep/"]}
expected = {"src/build/x": (True, False), "b/a/x": (True, False), "keep/x.log": (True, True)}
seen = {}
for path, patterns in cases.items():
    place = top / path.replace("/", "-")
    (place / path).parent.mkdir(parents=True)
    (place / path).write_text("x")
    (place / ".gitignore").write_text("\n".join(patterns))
    subprocess.run(["git", "init", "-q", place], check=True)
    ignored = subprocess.run(["git", "-C", place, "check-ignore", "-q", path]).returncode == 0
    seen[path] = ignored, pathspec.GitIgnoreSpec.from_lines(patterns).match_file(path)
    print(f"{patterns}: {path} is ignored by git: {seen[path][0]}, by GitIgnoreSpec: {seen[path][1]}")
sys.exit(seen != expected)
PYTHON
done
exit "$differ"
