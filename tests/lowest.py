"""Print the lower bound of each dependency as a constraint: `python tests/lowest.py > constraints.txt`.

`make lowest` installs exactly these versions, so that a bound in pyproject.toml is one that was tested.
"""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path

_BOUNDED = re.compile(r"(?P<name>[\w.-]+)(\[[^\]]*\])?(>=|==)(?P<version>[\w.]+)(?P<marker>\s*;.*)?")


def constraints(pyproject: str) -> list[str]:
    """Return a line such as `click==8.1` for each dependency and extra that has a lower bound."""
    project = tomllib.loads(pyproject)["project"]
    wanted = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    found = [match for each in wanted if (match := _BOUNDED.fullmatch(each))]
    return [f"{match['name']}=={match['version']}{match['marker'] or ''}" for match in found]


if __name__ == "__main__":
    root = Path(__file__).parent.parent
    print("\n".join(constraints((root / "pyproject.toml").read_text(encoding="utf-8"))))
