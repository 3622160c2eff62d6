"""What no file may hold: places that exist only on the machine of whoever wrote it."""

from __future__ import annotations

import re

from tests.architecture import source

# Built from parts, so that this file does not hold what it looks for.
HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("python" + "hosted", "org"),
        ("pypi", "python", "org"),
        ("registry", "npmjs", "org"),
        ("static", "crates", "io"),
        ("index", "crates", "io"),
        ("proxy", "golang", "org"),
        ("repo1", "maven", "org"),
        ("repo", "maven", "apache", "org"),
        ("deb", "debian", "org"),
        ("archive", "ubuntu", "com"),
    )
]
HOMES = re.compile(r"(?<![\w.$}])/(?:root|home/\w+|Users/\w+)/")
FREE_TEXT = {"LICENSE"}


def texts() -> dict[str, str]:
    kept = {}
    for path in source.kept_files():
        try:
            kept[str(path.relative_to(source.ROOT))] = path.read_text()
        except UnicodeDecodeError:
            continue  # a picture or an archive
    return {name: text for name, text in kept.items() if name not in FREE_TEXT}


def test_no_file_names_a_registry_host() -> None:
    """Where packages come from is the business of the machine that installs them."""
    found = {(name, host) for name, text in texts().items() for host in HOSTS if host in text}
    assert not found


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    here = str(source.ROOT)
    found = {
        (name, match.group())
        for name, text in texts().items()
        for match in re.finditer(f"{HOMES.pattern}|{re.escape(here)}(?![\\w-])", text)
    }
    assert not found
