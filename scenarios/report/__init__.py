"""Reports that people read: pages of one file, and pictures."""

from scenarios.report.comparison_page import write_comparison
from scenarios.report.page_of_run import write_report

__all__ = ["write_comparison", "write_report"]
