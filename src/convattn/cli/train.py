"""`convattn train`: trains by a recipe, into a folder."""

import os
import shlex
import sys
from pathlib import Path
from typing import Literal

from convattn.cli.output import (
    Imports,
    OutputOrDefault,
    Settings,
    WholeNumber,
    first_free,
    print_record,
    recipe_changes,
    say,
)
from convattn.cli.threads import one_thread


def train(  # noqa: PLR0913 - the options of the command
    recipe: str,
    /,
    *,
    scale: Literal["paper", "medium", "small", "tiny"] | None = None,
    output: OutputOrDefault = None,
    seed: WholeNumber | None = None,
    data: Path | None = None,
    imports: Imports = (),
    overrides: Settings = (),
    resume: bool = False,
    checkpoint_every: WholeNumber | None = None,
    tracker: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = (),
    yes: bool = False,
    json: bool = False,
) -> int:
    """Train a network by a recipe, and record everything needed to repeat the run.

    The run's folder holds recipe.toml, metrics.jsonl, heads.parquet (if heads have centres), model.safetensors,
    config.json, README.md (the card) and record.json. record.json is written last: a folder without it is a run that
    did not finish, and --resume continues it from its newest checkpoint. Tiny images are computed on one thread, others
    on all cores, unless OMP_NUM_THREADS or MKL_NUM_THREADS says how many. With several processes: accelerate launch -m
    convattn train RECIPE. Progress is a bar on a terminal, and otherwise a line on standard error after each epoch and
    every ten seconds.

    Args:
        recipe: Name of a recipe (`convattn info` lists them), or a file that ends in .toml.
        scale: Sizes of the run: paper, medium (half an hour to two hours on a core with AMX), small (7 to 40 minutes on
            a core) or tiny (seconds, on embedded images). Default: paper, or what the file says.
        output: Folder to make for the run; it must be new or empty, except with --resume. Default: runs/NAME-SEED (with
            the scale in the name if it is not paper), or the first of runs/NAME-SEED-2, -3, … that is free.
        seed: Seed of weights, order and augmentation. Default: what the recipe says, 0.
        data: Folder of your own pictures to train on, with a folder for each class, or folders train and test with one
            for each class; or with the files of CIFAR-10. Pictures are cropped to squares and resized to 32 x 32, or as
            --set data.size=64 says.
        imports: Module to import first, which registers encodings of your own; it is looked for in the current folder,
            too. May be given more than once.
        overrides: KEY=VALUE, a value of the recipe to change, for instance training.epochs=3; may be given more than
            once.
        resume: Continue the run in the folder; a finished run is left as it is.
        checkpoint_every: Write a checkpoint also every so many steps, beside the one after each epoch.
        tracker: Also send the metrics to tensorboard, wandb or trackio; may be given more than once.
        yes: Start training of more than an hour; in a terminal that is refused otherwise.
        json: Print the run's record as JSON.

    Returns:
        0.
    """
    changes = recipe_changes(overrides, imports, data)
    if seed is not None:
        changes["seed"] = str(seed)
    from convattn.lab import load_recipe
    from convattn.lab import train as train_by
    from convattn.lab.run_cost import announce
    from convattn.lab.run_folder import RunFolder
    from convattn.lab.run_setup import require_for_run

    resolved = load_recipe(recipe, scale=scale, overrides=changes)
    folder = output or Path("runs") / resolved.run_name
    if output is None and not resume:
        folder = first_free(folder)
    shows_bar = sys.stderr is not None and sys.stderr.isatty()
    tell = None if shows_bar else say  # a terminal has the progress bar
    finished = resume and (folder / "record.json").is_file()
    try:
        with one_thread(resolved.is_small):
            if not resume:
                RunFolder(folder).require_new()
                require_for_run(resolved)
                announce([resolved], say, yes=yes)
            record = train_by(
                resolved,
                output=folder,
                resume=resume,
                checkpoint_every=checkpoint_every,
                trackers=tracker,
                tell=tell,
            )
    except KeyboardInterrupt:
        if not any(folder.glob("checkpoints/step-*")):
            raise
        run = shlex.quote(str(folder))
        raise KeyboardInterrupt(
            f"convattn train {run}/recipe.toml -o {run} --resume goes on from the newest checkpoint"
        ) from None
    # torchrun and accelerate name the first of several processes so
    if os.environ.get("RANK", "0") == "0":
        done = "was finished:" if finished else "wrote"
        print_record(record, f"{record.summary()}\n{done} {folder}", json=json)
    return 0
