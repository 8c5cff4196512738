"""Additions to mkdocs: pages and pictures from results/, and formulas as MathML.

Pages link to results/ as they do in the repository (`../results/bench`, `../results/…/figure.png`). The READMEs there
become pages of the site, and every file that a page links to is copied.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()[^)\s#]+")  # the target of a Markdown link or image
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config) -> Files:
    for readme in sorted(ROOT.glob("results/*/README.md")):
        files.append(from_results(readme, config))
    for page in list(files.documentation_pages()):
        home = Path(page.abs_src_path)
        for link in LINK.findall(home.read_text(encoding="utf-8")):
            target = Path(os.path.normpath(home.parent / link))
            if target.is_file() and target.is_relative_to(ROOT / "results"):
                file = from_results(target, config)
                if file.src_uri not in files.src_uris:
                    files.append(file)
    return files


def from_results(path: Path, config) -> File:
    """A file of results/, at the same path in the site."""
    return File(path.relative_to(ROOT).as_posix(), str(ROOT), config.site_dir, config.use_directory_urls)


def on_page_markdown(markdown: str, page, config, files: Files) -> str:
    """Adapt links between docs/ and results/ to the site, whose root is docs/."""
    home = Path(page.file.abs_src_path).parent

    def moved(link: re.Match) -> str:
        target = Path(os.path.normpath(home / link[0]))
        if home.is_relative_to(ROOT / "results") and target.is_relative_to(ROOT / "docs"):
            return os.path.relpath(ROOT / target.relative_to(ROOT / "docs"), home)
        if "://" in link[0] or not target.is_relative_to(ROOT / "results") or home.is_relative_to(ROOT / "results"):
            return link[0]
        readme = target / "README.md"
        return (readme if readme.exists() else target).relative_to(ROOT).as_posix()

    return LINK.sub(moved, markdown)


def on_page_content(content: str, page, config, files: Files) -> str:
    """Convert formulas to MathML, which browsers render without scripts."""

    def mathml(formula: re.Match) -> str:
        display = "block" if formula[1] == "div" else "inline"
        drawn = convert(html.unescape(formula[2]).strip(), display=display)
        return drawn.replace("<mi>log</mi>", '<mi>log</mi><mspace width="0.17em" />')

    return FORMULA.sub(mathml, content)
