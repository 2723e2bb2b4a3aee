"""Starts the program: an interrupt ends it quietly, even while its modules are loaded."""

from snapexport.cli.signals import end_on_signals


def main() -> int:
    """Run `snapexport`; the exit status."""
    end_on_signals()
    from snapexport.cli import app

    return app.main()
