"""One HTML page to look through the responses of an evaluation."""

from eval_suite.samples_page.page import View, write_view

__all__ = ["View", "write_view"]
