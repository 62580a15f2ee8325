"""One Python process for the blocks of a page: each is run where the one before it has left off.

Blocks come as lines of JSON on standard input; what each printed, and its traceback if it raised, goes back the same way.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import traceback
from pathlib import Path


def main() -> None:
    sys.path[0] = str(Path.cwd())  # where the reader of a page would start Python
    names: dict[str, object] = {"__name__": "__main__"}
    for line in sys.stdin:
        block = json.loads(line)
        source = "\n" * (block["line"] - 1) + block["text"]  # so that a traceback names the page's own line
        printed, problem = io.StringIO(), None
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(source, block["page"], "exec"), names)
        except BaseException:  # noqa: BLE001  whatever it is, it is the block's answer
            problem = traceback.format_exc()
        print(json.dumps({"printed": printed.getvalue(), "problem": problem}), flush=True)


if __name__ == "__main__":
    main()
