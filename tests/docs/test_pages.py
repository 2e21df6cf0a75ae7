"""The documents say what is so: links lead somewhere, generated pages are current and are all there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import DOCUMENTS, FENCE, REPOSITORY, generator, name_of

LINK = re.compile(r"\[[^\]]+\]\((?!https?:)([^)\s]+)\)")
PAGES = generator().PAGES


@pytest.mark.parametrize("name", sorted(PAGES))
def test_generated_pages_are_current(name: str) -> None:
    assert (REPOSITORY / "docs" / name).read_text(encoding="utf-8") == PAGES[name](), "run `make docs`"


def test_no_page_of_a_code_that_is_gone_stays() -> None:
    assert generator().left_over() == []


def anchors(path: Path) -> set[str]:
    """Return the anchors that a renderer gives the headings: lower case, words joined by dashes."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path) -> list[str]:
    broken = []
    for link in LINK.findall(FENCE.sub("", path.read_text(encoding="utf-8"))):
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    assert broken_links(path) == []


def test_a_link_that_leads_nowhere_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One two\n[a](#one-two) [b](#three) [c](gone.md) [d](page.md#one-two) [e](https://example.org)\n")
    assert broken_links(page) == ["#three", "gone.md"]


def test_every_page_is_reached_from_the_readme() -> None:
    seen, open_pages = set(), [REPOSITORY / "README.md"]
    while open_pages:
        page = open_pages.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        links = LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
        open_pages += [(page.parent / link.partition("#")[0]).resolve() for link in links if not link.startswith("#")]
    lost = {path for path in DOCUMENTS if path.is_relative_to(REPOSITORY / "docs")} - seen
    assert {name_of(path) for path in lost} == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_the_project_speaks_only_of_itself(path: Path) -> None:
    text = path.read_text(encoding="utf-8").lower()
    assert not re.search(r"/work/|/tmp/|/root/|pypi\.org/simple|0\.7\.0", text)
