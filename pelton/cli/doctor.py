"""`pelton doctor`: what this machine has, what of it Pelton uses, and whether the kernels agree with each other."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys

import msgspec
from msgspec.structs import asdict

from pelton.cli.options import add_json

BANDWIDTH_BYTES = 256 << 20


class Check(msgspec.Struct, frozen=True):
    """One line. status: ok, warn or fail. fix: what to do, empty when ok."""

    name: str
    status: str
    found: str
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokenizers", action="store_true", help="list how far each known kind of pre-tokenizer has been checked"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.tokenizers:
        return _list_tokenizers(as_json=arguments.json)
    checks = [*_system(), *_levels(), *_memory()]
    if arguments.json:
        print(json.dumps({"checks": [asdict(check) for check in checks]}, indent=1))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            print(f"{check.status.upper():<5} {check.name:<{width}}  {check.found}")
            if check.fix:
                print(f"      {'':<{width}}  → {check.fix}")
    return 1 if any(check.status == "fail" for check in checks) else 0


def _list_tokenizers(*, as_json: bool) -> int:
    from pelton.text.pre_tokenizers import pre_tokenizer_status

    statuses = pre_tokenizer_status()
    if as_json:
        print(json.dumps({"pre_tokenizers": dict(statuses)}, indent=1))
        return 0
    width = max(len(name) for name, _ in statuses)
    for name, status in statuses:
        print(f"{name:<{width}}  {status}")
    return 0


def _system() -> list[Check]:
    from pelton import __version__
    from pelton.platforms.cpu.topology import usable_cores

    cores = usable_cores()
    return [
        Check("pelton", "ok", __version__),
        Check("python", "ok", f"{platform.python_version()} ({sys.executable})"),
        Check("system", "ok", platform.platform()),
        Check("cores", "ok", f"{cores.num_threads} threads, {cores.reason}; {os.cpu_count()} CPUs in the machine"),
    ]


def _levels() -> list[Check]:
    from pelton import _native

    checks = []
    for name, is_usable, reason in _native.levels():
        if not is_usable:
            is_wrong = "self-test" in reason
            fix = "please report this machine and its compiler" if is_wrong else ""
            checks.append(Check(f"level {name}", "fail" if is_wrong else "ok", f"not used: {reason}", fix))
            continue
        results = _native.self_test(name)
        wrong = [f"{kernel}: {result}" for kernel, result in results if result != "ok"]
        if wrong:
            checks.append(Check(f"level {name}", "fail", "; ".join(wrong), "please report this machine"))
        else:
            checks.append(Check(f"level {name}", "ok", f"{len(results)} kernel families agree with the reference"))
    return checks


def _memory() -> list[Check]:
    from pelton import _native
    from pelton.platforms.cpu.memory import usable_memory
    from pelton.platforms.cpu.topology import usable_cores
    from pelton.sizes import format_bytes

    memory = usable_memory()
    num_threads = usable_cores().num_threads
    team = _native.Team(num_threads)
    rate = max(_native.read_bandwidth(team, BANDWIDTH_BYTES) for _ in range(3))
    team.close()
    return [
        Check("memory", "ok", f"{format_bytes(memory.nbytes)} {memory.reason}"),
        Check("read bandwidth", "ok", f"{rate / 1e9:.1f} GB/s with {num_threads} threads"),
    ]
