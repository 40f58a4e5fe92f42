"""Where the installed `pelton` begins: Ctrl-C ends it quietly even while it imports. It knows no command."""

from __future__ import annotations


def main() -> int:
    """As `pelton.cli.main.main`."""
    try:
        from pelton.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 130
