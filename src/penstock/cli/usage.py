"""What the command line says to options and arguments that it cannot read: one line, for every command at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from penstock.cli.output import FOUND, end_with
from penstock.spark.ctrl_c import say_interrupted, take_over


class OneLineGroup(TyperGroup):
    """The commands; wrong usage of any of them is a line on stderr with the command that explains it."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            found = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except typer.Abort:
            if not standalone_mode:
                raise
            sys.exit(FOUND)
        except Exception as error:
            # The library's class of such errors has moved between its versions.
            if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
                raise
            if not standalone_mode:
                raise
            _end(error)
        if standalone_mode:
            sys.exit(found or 0)
        return found

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C ends it with one line."""
        take_over()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(say_interrupted()) from None


def _end(error: Any) -> NoReturn:
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.exit(error.exit_code)  # the help has been shown
    context = getattr(error, "ctx", None)
    asked = f" See {context.command_path} --help." if context is not None else ""
    message = str(error.format_message())
    try:
        end_with(f"{message}{'' if message.endswith(('.', '?')) else '.'}{asked}", error.exit_code)
    except typer.Exit as ended:
        sys.exit(ended.exit_code)
