"""The command line in tests: run it, and say what it must do."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from snefy_ldl.apps import cli


def run(*words: object) -> Result:
    """Run ``snefy-ldl`` with these words."""
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def succeed(*words: object) -> Result:
    """The result of a command that must end well."""
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result


def fail(*words: object) -> str:
    """The last line on stderr of a command that must end with exit code 1; notes may stand before it."""
    result = run(*words)
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    line = result.stderr.strip().splitlines()[-1]
    assert line.startswith("error: ")
    return line
