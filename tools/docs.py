"""Documentation that a program keeps true: the support matrix, and links between files.

`make docs` writes docs/support.md from the operator records and checks links; `--check` (in lint) writes nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUPPORT = ROOT / "docs" / "support.md"
SKIPPED = {".venv", ".git", "build", "dist", "node_modules"}

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def markdown_files() -> Iterator[Path]:
    """All documents of the repository."""
    for path in sorted(ROOT.rglob("*.md")):
        if not any(part.startswith(".") or part in SKIPPED for part in path.relative_to(ROOT).parts):
            yield path


def broken_links() -> Iterator[str]:
    """Links to files that are not there; links that leave the repository are not followed."""
    for path in markdown_files():
        for link in LINK.findall(path.read_text(encoding="utf-8")):
            if "://" in link or link.startswith(("#", "mailto:")):
                continue
            if not (path.parent / link.split("#")[0]).exists():
                yield f"{path.relative_to(ROOT)}: link to {link}, which does not exist"


def stale_support_table(write: bool) -> Iterator[str]:
    """Whether docs/support.md says what the operator records say; rewritten when asked to."""
    from pairloom._registry import support_table

    text = support_table().rstrip() + "\n"
    if write:
        SUPPORT.write_text(text, encoding="utf-8")
    elif not SUPPORT.is_file() or SUPPORT.read_text(encoding="utf-8") != text:
        yield f"{SUPPORT.relative_to(ROOT)} is not what the operator records say; run `make docs`"


def main() -> int:
    """Print what is wrong; exit status 1 when something is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    problems = [*stale_support_table(write=not parser.parse_args().check), *broken_links()]
    print("\n".join(problems) or "documentation is in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
