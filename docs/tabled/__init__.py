"""The tables of the pages, by what they are of."""

from tabled import functions, images, learners, pages, rows, summary
from tabled.figures import TABLES

__all__ = ["TABLES", "functions", "images", "learners", "pages", "rows", "summary"]
