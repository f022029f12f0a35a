#!/bin/bash
# Prepares a checkout for the two calls: a slim branch, and ignored folders that are carried along with it.
#
#   evidence/card/lent/prepare.sh IMAGES   in the checkout, with nothing uncommitted; IMAGES holds CIFAR-10 as parquet
#   .card/prepare.sh undo                  goes back to the branch before
#
# Tracked files, .card and one part of the images travel with each call: 54 MiB.
set -euo pipefail

if [ "$1" = undo ]; then
  git switch -q "$(cat .card/branch)"
  git branch -qD slim
  rm -rf .card .card0 .card1
  git status --short
  exit
fi

[ -z "$(git status --porcelain)" ] || { echo "commit or remove what has changed first"; exit 1; }
exclude=$(git rev-parse --git-path info/exclude)
grep -qx '/.card\*/' "$exclude" 2> /dev/null || echo '/.card*/' >> "$exclude"

# 1. What is carried: wheels, scripts, and both parts of the images.
rm -rf .card .card0 .card1
mkdir .card
cp evidence/card/lent/*.sh .card/
packages=(cyclopts docstring-parser rich-rst beartype tomli-w)  # what images with torch lack
for package in "${packages[@]}"; do
  pinned=$(grep -E "^$package==" constraints.txt | cut -d' ' -f1)
  .venv/bin/python -m pip download -q --no-deps --only-binary=:all: --python-version "${PYTHON_THERE:-3.12}" -d .card/wheels "$pinned"
done
CONVATTN_CIFAR10=$1 .venv/bin/python -m evidence.card.packed .card --parts 2
mv .card/0 .card0
mv .card/1 .card1
git rev-parse --abbrev-ref HEAD > .card/branch
base=$(git rev-parse HEAD)
echo "$base" > .card/revision

# 2. The slim branch: no pages, no trained networks, no records but those of the plan, which are not trained again.
git switch -qc slim
git ls-files docs pretrained evidence \
  | grep -vE '^evidence/.*\.py$|^evidence/card/' \
  | tr '\n' '\0' | xargs -0 git rm -rq --
git commit -qnm "Leave out what the card does not need"

# 3. The revision: commit, trees and index without contents, so that records name the commit that is measured.
git init -q --bare .card/git
git rev-list --objects --no-walk --filter=blob:none "$base" | cut -d' ' -f1 \
  | git pack-objects -q .card/git/objects/pack/pack > /dev/null
echo "$base" > .card/git/shallow
git --git-dir=.card/git update-ref --no-deref HEAD "$base"
export GIT_DIR=$PWD/.card/git GIT_WORK_TREE=$PWD
git read-tree "$base"
git ls-files -zd | git update-index -z --skip-worktree --stdin
echo "revision there: $(git describe --always --dirty --abbrev=40 --exclude='*')"
unset GIT_DIR GIT_WORK_TREE

# 4. What travels, in MiB.
tracked=$(git ls-files -z | xargs -0 du -cb | tail -1 | cut -f1)
for part in 0 1; do
  carried=$(du -sbc .card ".card$part" | tail -1 | cut -f1)
  echo "call $((part + 1)): $(( (tracked + carried) >> 20 )) MiB"
done
