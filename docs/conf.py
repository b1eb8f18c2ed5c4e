"""Sphinx configuration."""

import sb3_dualqdm

project = "sb3-dualqdm"
author = "sb3-dualqdm contributors"
project_copyright = f"2026, {author}"
version = release = sb3_dualqdm.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "builtin_sets.md"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # types are in the signatures

html_theme = "furo"
html_title = f"sb3-dualqdm {release}"
