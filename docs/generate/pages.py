"""The pages of the reference that are made from the program: `python docs/generate/pages.py` writes them into docs/.

They are committed, so that the documentation is complete on a code host too; a test compares them with the program.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the privfair beside these pages, not another one

from cli_page import cli_page
from configuration_page import configuration_page

PAGES = {"reference/cli.md": cli_page, "reference/configuration.md": configuration_page}


def write(folder: Path) -> None:
    """Every generated page."""
    for name, make in PAGES.items():
        (folder / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parents[1])
