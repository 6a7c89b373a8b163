"""Hooks of the site: pages that are made from the program itself, and files of the repository beside docs/."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parents[2]))  # the privfair beside these pages, not another one

from cli_page import cli_page
from configuration_page import configuration_page

PAGES = {"reference/cli.md": cli_page, "reference/configuration.md": configuration_page}
BESIDE = ("notebooks", "examples")  # folders that the pages link to


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of the site, with the generated pages and what lies beside docs/."""
    root = Path(config.docs_dir).parent
    for address, make in PAGES.items():
        files.append(File.generated(config, address, content=make()))
    for folder in BESIDE:
        for path in sorted((root / folder).glob("*.[it]*")):
            files.append(File.generated(config, f"{folder}/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page, with links to `../notebooks/…` (right in the repository) pointing to the copy inside the site."""
    return re.sub(rf"\]\(\.\./((?:\.\./)*(?:{'|'.join(BESIDE)})/)", r"](\1", markdown)
