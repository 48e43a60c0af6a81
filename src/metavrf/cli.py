"""The command line: parses, runs a command, and turns what a user can mend into one sentence."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Union

import tyro
from tyro.conf import subcommand

from metavrf.commands.listings import Data, Learners
from metavrf.commands.pictures import Export, Fit, Predict
from metavrf.commands.products import Embed, Pack
from metavrf.commands.runs import Compare, Evaluate, Info, Train, is_first_process
from metavrf.commands.studies import Demo, Kernels, Study
from metavrf.config import Config
from metavrf.errors import UserError
from metavrf.memory import keep_freed_memory
from metavrf.presets import PRESETS, preset
from metavrf.serve.command import Serve


def parse(arguments: Sequence[str]) -> Any:
    """The command that ``arguments`` ask for."""
    default = Train(config=starting_config(arguments), out=tyro.MISSING)
    commands = (
        Annotated[Train, subcommand("train", default=default)],
        Annotated[Evaluate, subcommand("evaluate")],
        Annotated[Compare, subcommand("compare")],
        Annotated[Learners, subcommand("learners")],
        Annotated[Info, subcommand("info")],
        Annotated[Data, subcommand("data")],
        Annotated[Embed, subcommand("embed")],
        Annotated[Pack, subcommand("pack")],
        Annotated[Fit, subcommand("fit")],
        Annotated[Predict, subcommand("predict")],
        Annotated[Export, subcommand("export")],
        Annotated[Serve, subcommand("serve")],
        Annotated[Demo, subcommand("demo")],
        Annotated[Study, subcommand("study")],
        Annotated[Kernels, subcommand("kernels")],
    )
    if arguments[:1] == ["train"] and len(arguments) > 1 and not arguments[1].startswith("-"):
        arguments = ["train", "--task", *arguments[1:]]  # the task may stand first, without the option's name
    command: Any = Union[commands]  # noqa: UP007 - made of a tuple
    description = "Few-shot learning with kernels inferred for each task (MetaVRF, ICML 2020)."
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                command,
                args=list(arguments),
                prog="metavrf",
                description=description,
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except SystemExit as stop:
        if stop.code:
            raise UserError(one_sentence(complaint.getvalue())) from None
        raise


def one_sentence(boxed: str) -> str:
    """The text of an error that stands in a drawn box, on one line."""
    lines = [line.strip("│ ") for line in boxed.splitlines()]
    return " ".join(line for line in lines if line.strip("─-╭╮╰╯ ") and not line.startswith("╭"))


def starting_config(arguments: Sequence[str]) -> Config:
    """Defaults of 'train', which depend on the task, the learner and the preset that its arguments name."""

    def option(name: str, fallback: str) -> str:
        for index, argument in enumerate(arguments):
            if argument.startswith(f"{name}="):
                return argument.split("=", 1)[1]
            if argument == name and index + 1 < len(arguments):
                return arguments[index + 1]
        return fallback

    if "--resume" in arguments and arguments[:1] == ["train"]:
        from metavrf.run import Run

        return Run.open(option("--out", "")).config()
    task = arguments[1] if len(arguments) > 1 and not arguments[1].startswith("-") else "sine"
    learner, name = option("--learner", "metavrf"), option("--preset", "default")
    context = option("--context", "")
    return preset(task, learner, name if name in PRESETS else "default", context)  # if unknown, the parser says so


def say(sentence: str) -> None:
    """One sentence on standard error, from one process of a run."""
    if is_first_process():
        print(f"metavrf: {sentence}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: exit code 2 and one sentence for what a user can mend."""
    code = exit_code(arguments)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        # One of several processes: threads of gloo can still run, and would abort the interpreter while it ends.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    if code:
        sys.exit(code)


def exit_code(arguments: Sequence[str] | None) -> int:
    """Run the command; what it ends with."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments == ["--version"]:
        from importlib.metadata import version

        print(f"metavrf {version('metavrf')}")
        return 0
    try:
        keep_freed_memory()
        parse(arguments).run()
    except UserError as error:
        say(str(error))
        return 2
    except KeyboardInterrupt as stop:
        say(str(stop) or "stopped")
        return int(getattr(stop, "exit_code", 130))
    except BrokenPipeError:  # the reader of our output has gone, as in 'metavrf ... | head'
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    return 0
