"""`horsies explain`: what an error code means and what to do about it, without a browser."""

from __future__ import annotations

from importlib.resources import files

import click
import msgspec

from horsies.errors import ErrorCode


@click.command()
@click.argument("code")
def explain(code: str) -> None:
    """Say what an error code such as HRS-206 means, and what to do about it."""
    wanted = code.upper().removeprefix("HRS-")
    found = next((each for each in ErrorCode if wanted in (each.removeprefix("HRS-"), each.name)), None)
    if found is None:
        raise click.UsageError(
            f"there is no error code {code!r}; codes look like {ErrorCode.CLI_INVALID_ARGS}"
        )
    text = files("horsies.cli").joinpath("explanations.json").read_bytes()
    name, cause, remedy = msgspec.json.decode(text, type=dict[str, tuple[str, str, str]])[found]
    click.echo(f"{found} {name}\n  cause:  {cause}\n  remedy: {remedy}")
