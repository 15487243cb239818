"""The command line: parse, call, print. The only place with click and rich."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

import edgekit
from edgekit.cli import building, devices, looking, shipping, storing
from edgekit.errors import EdgekitError, UsageError, did_you_mean

if TYPE_CHECKING:
    from edgekit.result import Result

INTERRUPTED = 130


class _Commands(click.Group):
    """A group that suggests the command that was meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise UsageError(f"no command '{args[0]}'", remedy=did_you_mean(args[0], self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


HELP = """From a trained model to a validated, signed package for an edge device.

    edgekit build MODEL --profile jetson --data DIR

Exit status: 0 no budget missed, 1 a bug in edgekit, 2 usage, 3 budget missed, 4 bad or unsafe input,
5 target unreachable or tool missing, 6 integrity check failed, 7 not supported on the profile, 130 interrupted."""


@click.group(cls=_Commands, help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(edgekit.__version__, prog_name="edgekit")
def edgekit_command() -> None:
    """Hold the commands: see HELP."""


for _command in (*building.COMMANDS, *shipping.COMMANDS, *looking.COMMANDS, *devices.COMMANDS, *storing.COMMANDS):
    edgekit_command.add_command(_command)


def run_cli(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit status. Every error ends here, as text or as the JSON object."""
    as_json = "--json" in arguments
    try:
        status = edgekit_command.main(args=list(arguments), prog_name="edgekit", standalone_mode=False)
    except click.exceptions.Exit as stop:
        status = stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        status = UsageError.exit_status
    except click.ClickException as error:
        status = _fail(_from_click(error), as_json=as_json)
    except EdgekitError as error:
        status = _fail(error, as_json=as_json)
    except (KeyboardInterrupt, click.Abort):
        status = _interrupted(as_json=as_json)
    except Exception as error:  # noqa: BLE001 - a bug must still be told as one: exit status 1, with its traceback
        status = _bug(error, as_json=as_json)
    return status if isinstance(status, int) else 0


def _from_click(error: click.ClickException) -> UsageError:
    where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "edgekit"
    return UsageError(error.format_message(), where=where, remedy=f"See: {where} --help")


def _fail(error: EdgekitError, *, as_json: bool) -> int:
    from edgekit.networks.launched import TOLD, place
    from edgekit.result import of_error

    if TOLD in getattr(error, "__notes__", ()):
        return error.exit_status  # by the first process
    as_json = as_json and not place().follows  # one object on stdout, whoever else fails
    _print_error(of_error(error), str(error), as_json=as_json)
    return error.exit_status


def _interrupted(*, as_json: bool) -> int:
    from edgekit.result import ErrorReport, Result

    error = ErrorReport(
        kind="interrupted",
        text="interrupted: what is finished is kept",
        where="",
        remedy="The same command goes on from there.",
    )
    _print_error(
        Result(status="error", exit=INTERRUPTED, error=error), f"{error.text}\n{error.remedy}", as_json=as_json
    )
    return INTERRUPTED


def _bug(error: Exception, *, as_json: bool) -> int:
    import traceback

    from edgekit.result import of_error

    traceback.print_exception(error)
    text = f"this is a bug in edgekit: {type(error).__name__}: {error}"
    bug = EdgekitError(text, remedy="Please report it with the traceback above and the output of: edgekit doctor")
    _print_error(of_error(bug), str(bug), as_json=as_json)
    return bug.exit_status


def _print_error(result: Result, text: str, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(result.to_json().decode() + "\n")
    sys.stderr.write(f"edgekit: {text}\n")
