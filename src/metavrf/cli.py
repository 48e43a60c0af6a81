"""The command line: finds the command, parses its arguments, and turns what a user can mend into one sentence.

Only the module of the command at hand is imported, so ``metavrf --help`` needs no torch.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple, Union

from metavrf.errors import Caution, UserError, printable
from metavrf.registry import unknown


class Command(NamedTuple):
    """Where a command is, and what it does."""

    module: str
    name: str
    summary: str


COMMANDS = {
    "train": Command("train", "Train", "Train a learner on tasks."),
    "pretrain": Command("train", "Train", "Train an embedding to tell all training classes apart, to start from."),
    "sweep": Command("sweep", "Sweep", "Search settings by runs that are judged on validation tasks."),
    "evaluate": Command("runs", "Evaluate", "Test a run on tasks that are fixed by a seed."),
    "compare": Command("runs", "Compare", "Test runs on the same tasks, with paired differences and known limits."),
    "info": Command("runs", "Info", "Say what a run is: settings, progress, result."),
    "kernels": Command("studies", "Kernels", "Draw what the points of a curve say of its kernel, one by one."),
    "fit": Command("pictures", "Fit", "Learn from a folder of pictures or a table, without training."),
    "predict": Command("pictures", "Predict", "Predict new pictures, the rows of a table or the rest of curves."),
    "export": Command("pictures", "Export", "Write a fitted model as ONNX, to run anywhere."),
    "embed": Command("products", "Embed", "Write the features of a data set to a file."),
    "pack": Command("products", "Pack", "Make a small copy of a run to pass on, tested and with a card."),
    "serve": Command("serve", "Serve", "Open a page to draw characters and curves on."),
    "learners": Command("listings", "Learners", "List the learners."),
    "data": Command("listings", "Data", "List the named data sets, and fetch them."),
    "demo": Command("studies", "Demo", "Learn to fit sine curves from a few points, in under two minutes."),
    "reproduce": Command("studies", "Reproduce", "Train, test and report the paper's tables and figures, and ours."),
    "study": Command("studies", "Reproduce", "The same as reproduce."),
}
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "calculation overflowed")  # as PyTorch says it
COMPLETION = "--tyro-print-completion"
DESCRIPTION = "Few-shot learning with kernels inferred for each task (MetaVRF, ICML 2020)."


def overview() -> str:
    """The text of ``metavrf --help``."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: metavrf COMMAND [OPTIONS]",
            "",
            DESCRIPTION,
            "",
            "commands:",
            *lines,
            "",
            "options:",
            f"  {'--help':{width}}  Show this text; 'metavrf COMMAND --help' lists a command's options.",
            f"  {'--version':{width}}  Show the version.",
            f"  {COMPLETION} {{bash,zsh,tcsh}}  Print a script that completes commands and options.",
        ]
    )


def command_class(name: str) -> Any:
    """The dataclass of a command."""
    command = COMMANDS[name]
    module = "metavrf.serve.command" if command.module == "serve" else f"metavrf.commands.{command.module}"
    return getattr(import_module(module), command.name)


def parse(arguments: Sequence[str]) -> Any:
    """The command that ``arguments`` ask for."""
    import tyro

    name, *rest = arguments
    if name not in COMMANDS:
        raise UserError(unknown("command", name, list(COMMANDS), "and see 'metavrf --help'"))
    kind, default = command_class(name), None
    if name in ("train", "pretrain", "sweep"):
        from metavrf.commands.train import prepare

        kind, default, rest = prepare(rest, "classifier" if name == "pretrain" else "metavrf", kind)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(kind, args=rest, prog=f"metavrf {name}", default=default)
    except SystemExit as stop:
        if stop.code:
            raise UserError(one_sentence(complaint.getvalue())) from None
        raise


def print_completion(arguments: Sequence[str]) -> None:
    """Let tyro print a script for a shell, which needs all commands at once."""
    import tyro
    from tyro.conf import subcommand

    from metavrf.commands.train import prepare

    kinds = {name: command_class(name) for name in COMMANDS}
    kinds["train"], _, _ = prepare([])
    kinds["pretrain"], _, _ = prepare(["omniglot"], "classifier")
    kinds["sweep"], _, _ = prepare([], command=kinds["sweep"])
    union: Any = Union[tuple(Annotated[kind, subcommand(name)] for name, kind in kinds.items())]  # noqa: UP007
    tyro.cli(union, args=list(arguments), prog="metavrf")


def one_sentence(boxed: str) -> str:
    """The text of an error that stands in a drawn box, on one line."""
    lines = [line.strip("│ ") for line in boxed.splitlines()]
    return " ".join(line for line in lines if line.strip("─-╭╮╰╯ ") and not line.startswith("╭"))


def is_first_process() -> bool:
    """Whether this is the process of a run that speaks to the user."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0


def say(sentence: str) -> None:
    """One sentence on standard error, from one process of a run."""
    if is_first_process():
        print(f"metavrf: {printable(sentence)}", file=sys.stderr)


def _say_warning(message: Warning | str, category: type[Warning], *rest: Any, **options: Any) -> None:
    """A warning of ours as a sentence; those of libraries as ever."""
    if issubclass(category, Caution):
        say(str(message))
    else:
        _show_warning(message, category, *rest, **options)


_show_warning = warnings.showwarning


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: exit code 2 and one sentence for what a user can mend."""
    code = exit_code(sys.argv[1:] if arguments is None else list(arguments))
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        # One of several processes: threads of gloo can still run, and would abort the interpreter while it ends.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    if code:
        sys.exit(code)


@contextlib.contextmanager
def _memory_errors() -> Iterator[None]:
    """What PyTorch cannot allocate is one sentence."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or any(words in str(error) for words in OUT_OF_MEMORY):
            advice = "ask for fewer tasks, samples, bases or kernels at a time"
            raise UserError(f"there is not enough memory for this: {advice}") from error
        raise


def exit_code(arguments: list[str]) -> int:
    """Run the command; what it ends with."""
    if arguments == ["--version"]:
        from importlib.metadata import version

        print(f"metavrf {version('metavrf')}")
        return 0
    if arguments in (["--help"], ["-h"]):
        print(overview())
        return 0
    warnings.showwarning = _say_warning
    try:
        if not arguments:
            raise UserError(f"give a command: {', '.join(COMMANDS)}; 'metavrf --help' says what they do")
        if any("\0" in argument for argument in arguments):
            raise UserError("an argument holds a null character, which no name has")
        if arguments[0].startswith(COMPLETION):
            print_completion(arguments)
            return 0
        from metavrf.memory import keep_freed_memory

        keep_freed_memory()
        with _memory_errors():
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
