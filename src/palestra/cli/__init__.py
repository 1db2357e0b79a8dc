"""The command line: ``palestra VERB``, one short function a verb over the parts below.

A verb reads its arguments, calls the part that does the work and prints. The one surprising choice: verbs
import what they run when they run, so that ``palestra --help`` answers at once and a core install can
play, audit and read reports without torch.
"""

from palestra.cli.app import main

__all__ = ["main"]
