"""SQL lives as SQL: named statements, one file for each noun.

A file holds blocks that open with `-- name: verb`. Python, logs and docs use the same verb.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files

_BLOCK = re.compile(r"^-- name: (?P<verb>\w+)\n(?P<sql>.*?)(?=^-- name: |\Z)", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)
_INDENT = re.compile(r"^ +", re.MULTILINE)


def statements(noun: str) -> Mapping[str, bytes]:
    """The statements of `sql/<noun>.sql` by verb, without comments and indents: the driver keeps short ones in mind."""
    text = files("horsies.storage").joinpath("sql", f"{noun}.sql").read_text(encoding="utf-8")
    return {
        block["verb"]: _INDENT.sub("", _COMMENT.sub("", block["sql"])).strip().rstrip(";").encode()
        for block in _BLOCK.finditer(text)
    }
