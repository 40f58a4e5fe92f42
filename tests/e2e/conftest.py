"""The command line as the CLI's own tests run it."""

from __future__ import annotations

from tests.cli.conftest import chat_model, pelton

__all__ = ["chat_model", "pelton"]
