"""Libraries are used through their public interface; each exception has a reason (docs/adr/0007)."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
OWN = ("shortlist", "models", "monitoring", "components", "pipelines", "feature_repo", "benchmarks", "tests")


A_PRIVATE_NAME = r"(?<!self)(?<!cls)\._[a-zA-Z]|import .*\b_[a-zA-Z]|from [\w.]*\._"
A_REPLACED_NAME = r"(?m)^ *(?!self\.|cls\.)\w+(\.\w+)+ *(:.*)?[-+*/|&]?= |\bdel |sys\.modules"
A_CLASS_WITH_BASES = r"(?m)^ *class \w+\("
"""What a module's text has where one of these may be found: reading all of them as code takes six seconds."""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def modules(pattern: str) -> list[tuple[str, ast.Module]]:
    """Return the modules of the project whose text matches, by path."""
    paths = sorted(path for folder in OWN for path in (ROOT / folder).rglob("*.py"))
    found = (path for path in paths if re.search(pattern, path.read_text(encoding="utf-8")))
    return [(path.relative_to(ROOT).as_posix(), parsed(path)) for path in found]


OWN_FILES = {path.stem for path in (ROOT / "tests").rglob("*.py")}
"""Helpers of tests are imported by their bare names."""


def is_foreign(module: str) -> bool:
    root = module.partition(".")[0]
    return root not in OWN and root not in sys.stdlib_module_names and root not in OWN_FILES


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@cache
def imported(tree: ast.Module) -> dict[str, str]:
    """Return what names stand for that come from other libraries: `{"np": "numpy"}`."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                name = one.name if one.asname else one.name.partition(".")[0]
                if is_foreign(one.name):
                    found[one.asname or name] = name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level and is_foreign(node.module):
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return found


def named(node: ast.expr, names: dict[str, str]) -> str:
    """Return what an expression like `torch.nn.Module` stands for; empty: nothing of another library."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute) and (left := named(node.value, names)):
        return f"{left}.{node.attr}"
    return named(node.value, names) if isinstance(node, ast.Subscript) else ""


def private_names(tree: ast.Module) -> Iterator[str]:
    """Give private names of other libraries that are imported, or looked up in what is imported."""
    names = imported(tree)
    yield from (whole for whole in names.values() if any(map(is_private, whole.split("."))))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) or not isinstance(node, ast.Attribute) or not is_private(node.attr):
            continue
        if left := named(node.value, names):
            yield f"{left}.{node.attr}"


def replaced_names(tree: ast.Module) -> Iterator[str]:
    """Give names of other libraries that are assigned or deleted, and entries of `sys.modules`."""
    names = imported(tree) | {"sys": "sys"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        for target in (part for whole in targets for part in getattr(whole, "elts", [whole])):
            if isinstance(target, ast.Subscript) and named(target.value, names) == "sys.modules":
                yield "sys.modules"
            elif isinstance(target, ast.Attribute) and not (name := named(target, names)).startswith("sys.") and name:
                yield name


Classes = dict[str, list[tuple[str, ast.ClassDef, dict[str, str]]]]


def classes(of: Iterable[tuple[str, ast.Module]]) -> Classes:
    """Return every class of some modules by its name, with where it is and what its module imports."""
    found: Classes = {}
    for path, tree in of:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append((path, node, imported(tree)))
    return found


def foreign_bases(node: ast.ClassDef, names: dict[str, str], known: Classes) -> set[str]:
    """Return the classes of other libraries that a class derives from, also through classes of the project."""
    found = set()
    for base in node.bases:
        if whole := named(base, names):
            found.add(whole)
        elif isinstance(base, ast.Name | ast.Attribute | ast.Subscript):
            own = base.value if isinstance(base, ast.Subscript) else base
            name = own.id if isinstance(own, ast.Name) else getattr(own, "attr", "")
            for _, above, others in known.get(name, []) if name != node.name else ():
                found |= foreign_bases(above, others, known)
    return found


def overridden(of: Iterable[tuple[str, ast.Module]]) -> Iterator[str]:
    """Give private methods of other libraries' classes that a class of some modules defines too."""
    known = classes(of)
    for path, node, names in (one for same in known.values() for one in same):
        own = {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
        private = {name for name in own if is_private(name)}
        for base in foreign_bases(node, names, known) if private else ():
            module, _, name = base.rpartition(".")
            kind = getattr(importlib.import_module(module), name, None)
            yield from (f"{path}: {base}.{method}" for method in private if hasattr(kind, method))


def listed(of: Callable[[ast.Module], Iterable[str]], pattern: str) -> set[str]:
    return {f"{path}: {name}" for path, tree in modules(pattern) for name in of(tree)}


PRIVATE = {
    # torch documents this class under this name alone (its notes on extending torch).
    "tests/unit/models/embedding/test_admission.py: torch.utils._python_dispatch.TorchDispatchMode",
    "tests/unit/models/embedding/test_step.py: torch.utils._python_dispatch.TorchDispatchMode",
    # Names of operators, as torch's dispatcher calls them.
    "tests/unit/models/embedding/test_admission.py: torch.ops.aten._local_scalar_dense",
    "tests/unit/models/embedding/test_admission.py: torch.ops.aten._unique2",
    # ADR 3: what kfp.local does for a loop stays its own.
    "shortlist/runs/concurrent_steps.py: kfp.local.orchestrator.enhanced_dag_orchestrator._run_parallel_for_task",
}
REPLACED = {
    # ADR 7: Feast is imported in a fifth of the processor time; both are put back at once.
    "shortlist/features/feast/store.py: sys.modules",
    "shortlist/features/feast/store.py: typeguard.typechecked",
    # The module of a compiled loop is entered as importlib's documentation says ("importing a source file directly").
    "shortlist/serving/export/program/compiling.py: sys.modules",
    # ADR 3: kfp.local has no hook for the order of tasks, for their processes, or for its cache; all are put back.
    "shortlist/runs/concurrent_steps.py: kfp.local.cache.LocalCache.get",
    "shortlist/runs/concurrent_steps.py: kfp.local.cache.LocalCache.put",
    "shortlist/runs/concurrent_steps.py: kfp.local.logging_utils.indented_print",
    "shortlist/runs/concurrent_steps.py: kfp.local.logging_utils.local_logger_context",
    "shortlist/runs/concurrent_steps.py: kfp.local.orchestrator.enhanced_dag_orchestrator.run_enhanced_dag",
    "shortlist/runs/concurrent_steps.py: kfp.local.orchestrator.task_executor.execute_single_task",
    "shortlist/runs/concurrent_steps.py: kfp.local.subprocess_task_handler.run_local_subprocess",
    "shortlist/runs/concurrent_steps.py: kfp.local.task_dispatcher.run_single_task_implementation",
    # ADR 3: a local run imports kfp without its client of Kubeflow.
    "shortlist/runs/runner.py: sys.modules",
    "shortlist/runs/runner.py: kfp.Client",
    # A module with one more declaration, imported in place of the original by a process of its own.
    "tests/unit/serving/rollout/new_count_program.py: sys.modules",
    # kfp.local has no hook for what an object store and Kubeflow's metadata store do to outputs.
    "tests/kubeflow_backend/sitecustomize.py: kfp.local.cache.LocalCache.get",
    "tests/kubeflow_backend/sitecustomize.py: kfp.local.executor_output_utils.get_outputs_from_executor_output",
    # A process that is to die in the middle of a call.
    "tests/cluster/kserve/controller_program.py: urllib3.connection.HTTPConnection.getresponse",
}


def test_no_private_name_of_another_library_is_imported() -> None:
    assert listed(private_names, A_PRIVATE_NAME) == PRIVATE


def test_nothing_of_another_library_is_replaced() -> None:
    assert listed(replaced_names, A_REPLACED_NAME) == REPLACED


def test_no_private_method_of_another_library_is_overridden() -> None:
    assert set(overridden(modules(A_CLASS_WITH_BASES))) == set()


def test_each_violation_would_be_reported() -> None:
    text = """
import sys
import torch._dynamo, typeguard
import urllib3.connectionpool as pool
from pandas._libs import hashtable
from torch import nn

class Table(nn.Module):
    pass

class Cached(Table):
    def _save_to_state_dict(self): ...
    def _own(self): ...

torch._dynamo.reset()
pool.HTTPConnectionPool._get_conn = None
typeguard.typechecked = None
sys.modules["torch"] = None
del sys.modules["torch"]
sys.argv = []
"""
    tree = ast.parse(text)
    assert {*private_names(tree)} == {
        "pandas._libs.hashtable", "torch._dynamo", "urllib3.connectionpool.HTTPConnectionPool._get_conn",
    }  # fmt: skip
    assert {*replaced_names(tree)} == {
        "sys.modules", "typeguard.typechecked", "urllib3.connectionpool.HTTPConnectionPool._get_conn",
    }  # fmt: skip
    assert {*overridden([("a.py", tree)])} == {"a.py: torch.nn.Module._save_to_state_dict"}
    for pattern, of in ((A_PRIVATE_NAME, private_names), (A_REPLACED_NAME, replaced_names)):
        alone = [line for line in text.splitlines() if re.search(pattern, line)]
        imports = [line for line in text.splitlines() if "import" in line]
        assert {*of(ast.parse("\n".join(imports + alone)))} == {*of(tree)}  # each of their lines says it
    assert re.search(A_CLASS_WITH_BASES, text)
