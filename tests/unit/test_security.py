"""A payload is data: whatever it says, nothing is imported, compiled or started because of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CANARY = """
from pathlib import Path
Path(__file__).with_name("imported").touch()
class Evil:
    def __init__(self, *args, **kwargs):
        Path(__file__).with_name("made").touch()
"""

# Valid documents are mutated: every node is replaced by, and every object is given, what other libraries would act on.
# What the interpreter does meanwhile is seen by an audit hook, once everything that is imported when first needed is.
SCRIPT = """
import copy, json, sys
from dataclasses import dataclass
from typing import Any, Literal
import msgspec, pydantic
from horsies import AppConfig, Horsies, RetryPolicy, TaskError, TaskResult
from horsies.codec import decode_result
from horsies.errors import HorsiesError
from horsies.executor.runner import execute
from horsies.executor.runner import Run
from horsies.executor.protocol import Call

class Cat(msgspec.Struct, tag=True):
    name: str

class Dog(msgspec.Struct, tag=True):
    name: str

class Model(pydantic.BaseModel):
    kind: Literal["a"] = "a"
    data: Any = None

class Other(pydantic.BaseModel):
    kind: Literal["b"] = "b"

@dataclass
class Order:
    lines: list[dict[str, Any]]
    model: Model

app = Horsies(AppConfig.for_database_url("postgresql://nowhere/app"))

@app.task("take")
def take(order: Order, pet: Cat | Dog, model: Model | Other, free: Any, before: TaskResult[Model, TaskError]) -> TaskResult[Order, TaskError]:
    return TaskResult(ok=order)

ARGUMENTS = {
    "order": {"lines": [{"n": 1}], "model": {"kind": "a", "data": [1]}},
    "pet": {"type": "Cat", "name": "Tom"},
    "model": {"kind": "b"},
    "free": {"x": [1, "two", None]},
    "before": {"ok": {"kind": "a", "data": None}},
}
ERROR = {"error_code": {"__builtin_task_code__": "TASK_TIMEOUT"}, "message": "m", "data": {"x": 1},
         "exception": {"type": "ValueError", "module": "builtins", "traceback": "…"}}
RESULTS = [{"ok": ARGUMENTS["order"]}, {"err": ERROR}]
POLICY = {"max_retries": 2, "intervals": [1, 2], "auto_retry_for": ["DOWN"]}
EVIL = [
    "canary", "canary:Evil", "canary.Evil", "__import__('canary')", "!!python/object:canary.Evil",
    {"__class__": "canary.Evil"}, {"__import__": "canary"}, {"py/object": "canary.Evil"}, {"$type": "canary.Evil"},
    {"type": "canary.Evil"}, {"kind": "canary.Evil"}, {"module": "canary", "qualname": "Evil"},
    {"__pydantic_model__": True, "module": "canary", "qualname": "Evil", "data": {}},
    {"__dataclass__": True, "module": "canary", "qualname": "Evil", "data": {}},
    {"__reduce__": ["os.system", ["touch made"]]}, {"__horsies_taskresult__": True, "ok": {"module": "canary"}},
    {"exc_module": "os", "exc_type": "system", "exc_message": "touch made"}, {"__builtin_task_code__": "canary.Evil"},
]

def places(node, path=()):
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))

def mutants(document):
    for path in places(document):
        for evil in EVIL:
            for into in (False, True):
                whole = {"root": copy.deepcopy(document)}
                *way, last = "root", *path
                node = whole
                for key in way:
                    node = node[key]
                if not into:
                    node[last] = evil
                elif isinstance(node[last], dict) and isinstance(evil, dict):
                    node[last] |= evil
                else:
                    continue
                yield json.dumps(whole["root"])

def call(name, kwargs=None, args=None):
    call = Call(1, "id", name, args, kwargs, "default", 1, 0, None, 0.0, 1, None)
    return execute(app, Run(call, lambda _: True, ()))

def policy(text):
    try:
        RetryPolicy.from_json(json.loads(text))
    except HorsiesError:
        pass

def everything():
    for text in mutants(ARGUMENTS):
        yield call("take", text)
    for text in mutants([ARGUMENTS["order"]]):
        yield call("take", "{}", text)
    for result in RESULTS:
        for text in mutants(result):
            for kind in (Order, Cat | Dog, Model, Model | Other, Any):
                yield decode_result(text, kind)
    for text in mutants(POLICY):
        yield policy(text)
    for name in ("canary", "canary:Evil", "canary.Evil", "os.system", "builtins.eval", "__main__.take", "__class__",
                 "__init__", "../canary", "/canary.py", "tаke", "take ", "TAKE", "x" * 10_000_000):
        yield call(name, '{"command": "touch made"}')

assert call("take", json.dumps(ARGUMENTS)).ok, "the document that is mutated is valid"
for _ in everything():
    pass

WATCHED = {"import", "compile", "exec", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen",
           "pickle.find_class", "marshal.loads", "ctypes.dlopen", "socket.connect"}
seen = []
sys.addaudithook(lambda event, args: seen.append((event, repr(args)[:200])) if event in WATCHED else None)
modules = set(sys.modules)
tried = sum(1 for _ in everything())
quiet = (list(seen), sorted(set(sys.modules) - modules))
eval("1")
print(json.dumps({"tried": tried, "seen": quiet[0], "new": quiet[1], "watching": len(seen) > len(quiet[0])}))
"""


def test_no_payload_result_policy_or_name_makes_anything_happen(tmp_path: Path) -> None:
    (tmp_path / "canary.py").write_text(CANARY)
    (tmp_path / "script.py").write_text(SCRIPT)

    ran = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )

    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["tried"] > 2_000
    assert told["watching"]
    assert (told["seen"], told["new"]) == ([], [])
    assert {path.name for path in tmp_path.iterdir()} == {"canary.py", "script.py"}
