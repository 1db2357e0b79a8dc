"""The viewer: a run folder made readable, as a page, a table, a JSON object, or one episode in the terminal.

It reads what the store holds and computes no metric of its own. The one surprising choice: it works on a run
at any moment, empty, half done or torn, because that is when people look.
"""

from palestra.viewer.masks import mask_table, mask_text
from palestra.viewer.replay import trajectory_text
from palestra.viewer.report import write_report
from palestra.viewer.summary import run_summary, summary_table

__all__ = ["mask_table", "mask_text", "run_summary", "summary_table", "trajectory_text", "write_report"]
