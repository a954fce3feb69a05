"""Give every chapter a first cell that installs the book where it is missing, for notebooks opened in Colab.

    python tools/launch.py https://github.com/OWNER/NAME

Meant for a branch of its own, `launch`, to which the launch buttons of the pages lead (.github/workflows/pages.yml);
on `main` the chapters have no address.  Needs no package.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CELL = """\
# Installs the book where it is missing, such as in Colab.
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("fedbook") is None:
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", "{address}", "fedbook-files"], check=True)
    needs = "fedbook-files[data,batches,pictures]"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--editable", needs], check=True)
    sys.path.insert(0, "fedbook-files")
"""


def with_install_cell(notebook: dict, address: str) -> dict:
    """The notebook, whose first cell installs the book from this address.

    Raises ValueError unless the address is that of a repository, such as https://github.com/OWNER/NAME.
    """
    if not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", address):
        raise ValueError(f"{address!r} is no repository's address; give one such as https://github.com/OWNER/NAME")
    cells = [cell for cell in notebook["cells"] if cell.get("id") != "install"]
    source = CELL.format(address=address).rstrip("\n").splitlines(keepends=True)
    first = {"cell_type": "code", "id": "install", "metadata": {"tags": ["remove-cell"]}, "source": source,
             "execution_count": None, "outputs": []}  # fmt: skip
    return notebook | {"cells": [first, *cells]}


def main(address: str) -> None:
    for path in sorted((ROOT / "book").glob("*.ipynb")):
        new = with_install_cell(json.loads(path.read_text("utf-8")), address)
        path.write_text(json.dumps(new, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("give the repository's address: python tools/launch.py https://github.com/OWNER/NAME")
    main(sys.argv[1])
