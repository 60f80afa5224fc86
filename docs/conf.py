"""Sphinx: the manual, and pages of the package ``reducers`` from its docstrings. ``make docs`` runs it in the root."""

import reducers

project = "syncsum"
author = "The syncsum authors"
project_copyright = author
release = reducers.__version__
html_title = f"syncsum {release}"
html_theme = "furo"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["*.ipynb"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
# The manual also links to files outside of docs/, which are no pages; tests/test_docs.py checks every link.
suppress_warnings = ["myst.xref_missing"]
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True


def setup(app):
    """Leaves out the fields of a NamedTuple, which its docstring describes."""
    app.connect("autodoc-skip-member", lambda app, what, name, found, skip, options: _is_field(found) or None)


def _is_field(found):
    return (getattr(found, "__doc__", None) or "").startswith("Alias for field number")
