"""The part of `make release` beside building: checks of the repository's facts, and a list of the results.

python tools/release.py source FOLDER [--tag v1.2.3] [--repository URL]    the last commit, ready to be built
python tools/release.py fits FILE...                                       those that this machine can install
python tools/release.py list FOLDER [--repository URL]                     checksums, and what is to be done next
"""

import argparse
import hashlib
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUMS = "SHA256SUMS"
# In the folder of the source: which commit it is, and its time, in seconds.
COMMIT = "build/commit"
# A link's target in Markdown, after what shows whether it is a picture.
LINK = re.compile(r"(!?)(\[[^\[\]]*\]\()([^()\s]+)(?=\))")


def versions(root: Path = ROOT) -> dict[str, str]:
    """Return the version in each file; that of the changes is the newest that they have an entry for."""

    def found(file: str, pattern: str) -> str:
        match = re.search(pattern, (root / file).read_text(), re.MULTILINE)
        return match[1] if match else "none"

    return {
        "pyproject.toml": tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"],
        "CHANGELOG.md": found("CHANGELOG.md", r"^## (\d\S*)"),
        "CITATION.cff": found("CITATION.cff", r"^version: (\S+)$"),
        "packaging/conda/recipe.yaml": found("packaging/conda/recipe.yaml", r"^  version: (\S+)$"),
    }


def released(root: Path = ROOT) -> str | None:
    """Return the date of the newest version in the changes, or None if it has none yet."""
    title = re.search(r"^## \d.*$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    match = title and re.fullmatch(r"## \S+ - (\d{4}-\d\d-\d\d)", title[0])
    return match[1] if match else None


def relative_links(markdown: str) -> list[str]:
    """Return the targets of links that lead into the repository."""
    return [target for _, _, target in LINK.findall(markdown) if not re.match(r"[a-z]+:", target)]


def with_whole_links(readme: str, repository: str, tag: str) -> str:
    """Return README.md for a page elsewhere, as PyPI's: its links lead into the repository."""

    def whole(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = f"README.md{target}" if target.startswith("#") else target
        return f"{picture}{text}{repository}/{'raw' if picture else 'blob'}/{tag}/{path}"

    return LINK.sub(whole, readme)


def git(*arguments: str) -> bytes:
    """Run git, and return its output."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def source(folder: Path, tag: str | None, repository: str | None) -> None:
    """Write the last commit's files there; refuse a tree with other changes, or files that disagree on the version."""
    if changed := git("status", "--porcelain").decode():
        raise ValueError(f"There is something that was not committed, so it would not be in the release:\n{changed}")
    said = versions()
    version = said["pyproject.toml"]
    if set(said.values()) != {version}:
        raise ValueError(f"These do not agree about the version: {said}. Correct them, and commit.")
    if tag and tag != f"v{version}":
        raise ValueError(f"The tag is {tag}, but pyproject.toml has version {version}, whose tag is v{version}.")
    if tag and not released():
        raise ValueError(f'CHANGELOG.md has no date for {version}: make its title "## {version} - YYYY-MM-DD".')
    commit, seconds = git("log", "-1", "--format=%h %ct").decode().split()
    (folder / COMMIT).parent.mkdir(parents=True)
    (folder / COMMIT).write_text(f"{commit} {seconds}\n")
    with tarfile.open(fileobj=BytesIO(git("archive", commit))) as archive:
        # Python before 3.11.4 knows no filter, and takes no argument of that name.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    if repository:
        name = f"v{version}"
        readme, project = folder / "README.md", folder / "pyproject.toml"
        readme.write_text(with_whole_links(readme.read_text(), repository, name))
        if "urls" not in tomllib.loads(project.read_text())["project"]:
            urls = {"Source": repository, "Issues": f"{repository}/issues"}
            urls["Changes"] = f"{repository}/blob/{name}/CHANGELOG.md"
            lines = "".join(f'{key} = "{url}"\n' for key, url in urls.items())
            project.write_text(f"{project.read_text()}\n[project.urls]\n{lines}")


def fitting(files: Sequence[Path]) -> list[Path]:
    """Return the source distributions, and the wheels that pip would install here."""
    from packaging.tags import sys_tags
    from packaging.utils import parse_wheel_filename

    here = frozenset(sys_tags())
    return [file for file in files if file.suffix != ".whl" or parse_wheel_filename(file.name)[3] & here]


def listing(folder: Path, built: Path, repository: str | None) -> str:
    """Write the checksums of the files that were built from that source, and print them and the next step."""
    files = sorted(file for file in folder.iterdir() if file.suffix in (".whl", ".gz"))
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (folder / SUMS).write_text(sums)
    version = versions(built)["pyproject.toml"]
    commit = (built / COMMIT).read_text().split()[0]
    lines = [f"\n{folder} has mpixla {version}, commit {commit}, and nothing was uploaded:", sums, "Next:"]
    if not released(built):
        lines.append(f'  - Make the title in CHANGELOG.md "## {version} - YYYY-MM-DD", and commit that.')
    if not repository:
        count = len(relative_links((ROOT / "README.md").read_text()))
        lines.append(
            f"  - {count} links of README.md lead to files of the repository, and would lead nowhere on PyPI's page. "
            "REPOSITORY=https://... makes them whole; the release workflow knows it."
        )
    lines += [
        f"  - git tag v{version} && git push origin v{version}: .github/workflows/wheels.yml builds all this again,",
        "    tries it on machines of other kinds, and puts it on PyPI.",
        "  - Then packaging/conda/recipe.yaml goes to conda-forge, as its first lines say.",
    ]
    return "\n".join(lines)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("source", "list"):
        command = commands.add_parser(name)
        command.add_argument("folder", type=Path)
        command.add_argument("--repository", help="where it is hosted, as https://host/owner/mpixla")
    commands.choices["list"].add_argument("source", type=Path)
    commands.choices["source"].add_argument("--tag", help="what the commit is tagged with: then all must be ready")
    commands.add_parser("fits").add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    try:
        if options.command == "source":
            source(options.folder, options.tag, options.repository)
        elif options.command == "list":
            print(listing(options.folder, options.source, options.repository))
        elif files := fitting(options.files):
            print(*files)
        else:
            raise ValueError(f"None of these can be installed here: {', '.join(map(str, options.files))}.")
    except ValueError as e:
        print(f"release: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
