"""Entry point of the ``holdfast`` command."""

from typing import Any

import typer
from typer.core import TyperGroup

from holdfast_cli.commands import (
    checkpoint,
    demo,
    incidents,
    inject,
    observe,
    operate,
    plan,
    publish,
    replay,
    run,
    services,
)
from holdfast_cli.errors import CommandError


class _OneLineErrors(TyperGroup):
    """Turns a CommandError into its line on stderr and its exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CommandError as error:
            typer.echo(f"holdfast: {error}", err=True)
            raise typer.Exit(error.exit_code) from None


app = typer.Typer(
    cls=_OneLineErrors,
    name="holdfast",
    help="Keeps a distributed PyTorch training run alive and explains what went wrong.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Everything after the first word that is no option of ours belongs to the trainer.
app.command(context_settings={"allow_interspersed_args": False})(run.run)
app.command(context_settings={"allow_interspersed_args": False})(observe.observe)
app.command()(demo.demo)
app.command()(operate.status)
app.add_typer(incidents.app, name="incidents")
app.command()(replay.replay)
app.add_typer(checkpoint.app, name="checkpoint")
app.command()(operate.stop)
app.command()(inject.inject)
app.command(context_settings=plan.CONTEXT)(plan.plan)
app.command(context_settings={"allow_interspersed_args": False})(publish.publish)
app.command()(services.agent)
app.command()(services.daemon)


def main() -> None:
    """Run the command line."""
    app()
