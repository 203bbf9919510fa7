"""Where the project is on the web. pyproject.toml, mkdocs.yml and CITATION.cff name the same addresses."""

SITE = "https://mmcorl.github.io/mmcorl/"
