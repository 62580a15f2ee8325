"""Check resources of KEDA against its schemas, which an npm package holds. The package is fetched once."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PACKAGE = "@kubernetes-models/keda"
VERSION = "0.4.2"
FETCHED = Path(__file__).parents[2] / ".cache" / f"keda-{VERSION}"

# Prints a JSON list: for each resource the problem that was found, or null.
SCRIPT = """
const models = require(process.argv[1] + "/node_modules/@kubernetes-models/keda/keda.sh/v1alpha1");
const problems = JSON.parse(process.argv[2]).map((resource) => {
  try {
    new models[resource.kind](resource).validate();
    return null;
  } catch (problem) {
    return String(problem);
  }
});
console.log(JSON.stringify(problems));
"""


class NotFetched(Exception):
    pass


def problems(resources: Sequence[dict[str, Any]]) -> list[str | None]:
    """Return for each resource what is wrong with it, or None; raise NotFetched if the schemas cannot be had."""
    if not FETCHED.exists():
        _fetch()
    checked = subprocess.run(
        ["node", "--eval", SCRIPT, str(FETCHED), json.dumps(resources)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(checked.stdout)


def _fetch() -> None:
    if shutil.which("npm") is None:
        raise NotFetched("npm, which fetches the schemas of KEDA, is not installed")
    FETCHED.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FETCHED.parent) as folder:
        work = Path(folder) / "package"
        work.mkdir()
        words = ["npm", "install", "--silent", "--no-audit", "--ignore-scripts", f"{PACKAGE}@{VERSION}"]
        ran = subprocess.run(words, cwd=work, capture_output=True, text=True, timeout=60, check=False)
        if ran.returncode:
            raise NotFetched(f"npm cannot fetch {PACKAGE} {VERSION}: {ran.stderr[-300:]}")
        try:
            work.replace(FETCHED)  # complete or not there at all: tests fetch at the same time
        except OSError:
            if not FETCHED.exists():
                raise
