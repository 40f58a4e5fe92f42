"""The rules of ARCHITECTURE.md that import contracts can't express, held against the source text."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pelton"
MODULES = sorted(PACKAGE.rglob("*.py"))

DEVICE_WORDS = re.compile(r"\b(cuda|rocm|hip|mps|metal|avx\w*|vnni|neon|sse\d\w*|amx|is_cuda|is_cpu)\b", re.IGNORECASE)
BANNED_NAMES = {"eval", "exec", "compile", "__import__"}
BANNED_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_device_words_stay_in_platforms() -> None:
    found = []
    for path in MODULES:
        if path.is_relative_to(PACKAGE / "platforms"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if DEVICE_WORDS.search(line):
                found.append(f"{relative(path)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)


def test_only_config_reads_the_environment() -> None:
    found = []
    for path in MODULES:
        if relative(path) == "pelton/config.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}:
                found.append(f"{relative(path)}:{node.lineno}")
    assert not found, "\n".join(found)


def test_only_the_command_line_reads_arguments() -> None:
    found = []
    for path in MODULES:
        if path.is_relative_to(PACKAGE / "cli"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "argv":
                found.append(f"{relative(path)}:{node.lineno}")
    assert not found, "\n".join(found)


def test_nothing_executes_data() -> None:
    found = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_NAMES:
                if node.func.id == "compile" and relative(path).startswith("pelton/"):
                    called = ast.unparse(node)
                    if "graph" in called or "spec" in called:
                        continue  # the project's own compile(graph, …)
                found.append(f"{relative(path)}:{node.lineno}: {node.func.id}()")
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                found += [f"{relative(path)}:{node.lineno}: {n}" for n in names if n.split(".")[0] in BANNED_MODULES]
            if isinstance(node, ast.keyword) and node.arg == "shell" and ast.unparse(node.value) == "True":
                found.append(f"{relative(path)}: shell=True")
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load":
                found.append(f"{relative(path)}:{node.lineno}: torch.load")
    assert not found, "\n".join(found)


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        relative(p) for p in MODULES if p.name != "__init__.py" and not ast.get_docstring(ast.parse(p.read_text()))
    ]
    assert not silent, silent


def test_files_fit_in_a_head() -> None:
    native = [p for pattern in ("*.h", "*.cc") for p in (ROOT / "csrc").rglob(pattern)]
    large = {relative(p): n for p in (*MODULES, *native) if (n := len(p.read_text().splitlines())) > 600}
    assert not large, large


def test_product_requirements_are_few_and_bring_no_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=!~\[ ]", requirement)[0] for requirement in project["dependencies"]}
    assert len(names) <= 12
    assert not names & {"torch", "numpy", "transformers"}


@pytest.mark.parametrize("module", ["pelton", "pelton.llm", "pelton.cli.main", "pelton.platforms.cpu"])
def test_importing_the_product_brings_no_torch(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({{'torch', 'numpy', 'transformers'}} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    assert found == ""


def test_tracked_text_names_no_machine() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    private = re.compile(r"/(?:home|root|work|mnt|Users)/[a-z]", re.IGNORECASE)
    found = []
    for name in tracked:
        try:
            text = (ROOT / name).read_text()
        except UnicodeDecodeError:
            continue
        if name != relative(Path(__file__)):
            found += [f"{name}: {match.group()}" for match in private.finditer(text)]
    assert not found, found


def test_records_are_structs() -> None:
    """A class of `dataclasses` takes long to make, and a start makes many; config.py needs the words of its fields."""
    makers = [relative(path) for path in MODULES if "@dataclass" in path.read_text()]
    assert makers == ["pelton/config.py"]
