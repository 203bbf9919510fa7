"""What pyproject.toml cannot say: the README's links as a package page needs them, and configs/ as a part of mmcorl."""

import re
import tomllib
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
LINK = re.compile(r"""(\]\(|\b(?:src|srcset|href)=")(?![a-z]+:|#)([^)"\s]+)""")


def with_absolute_links(text: str, repository: str) -> str:
    """Make links relative to the repository's top absolute; pictures are named as files, not as pages around them."""

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if re.search(r"\.(png|svg|gif|jpe?g|webp)$", link[2]) else "blob"
        return f"{link[1]}{repository}/{kind}/main/{link[2]}"

    return LINK.sub(absolute, text)


if __name__ == "__main__":
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    setup(
        packages=[*find_packages(include=["mmcorl*", "model_adapters*", "eval_suite*", "patches*"]), "mmcorl.configs"],
        package_dir={"mmcorl.configs": "configs"},
        long_description=with_absolute_links(readme, project["urls"]["Repository"]),
        long_description_content_type="text/markdown",
    )
