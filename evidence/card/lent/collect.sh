#!/bin/bash
# Puts what came back into evidence/card, and fills the pages.
#
#   evidence/card/lent/collect.sh FOLDER_OF_FILES   in the checkout, once for each call, after prepare.sh undo
set -euo pipefail
place=evidence/card
for name in smoke exact timing; do
  [ ! -f "$1/$name.json" ] || cp "$1/$name.json" $place/
done
for archive in "$1"/training-*.tar.xz; do
  [ -f "$archive" ] || continue
  work=$(mktemp -d)
  tar -xJf "$archive" -C "$work"
  [ ! -d "$work/training" ] || cp -r "$work/training" $place/
  .venv/bin/python - "$work/training.json" $place/training.json << 'P'
import json, sys
from pathlib import Path

new, kept = map(Path, sys.argv[1:])
content = json.loads(new.read_text())
if kept.exists():
    before = json.loads(kept.read_text())
    content = {**before, "rows": before["rows"] + content["rows"]}
kept.write_text(json.dumps(content, indent=1) + "\n")
P
  rm -r "$work"
done
PYTHONPATH=$PWD/src .venv/bin/python -W ignore -m evidence.pages
git status --short | head -20
