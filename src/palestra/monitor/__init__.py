"""What goes wrong in training, said in plain words: detectors over metrics and episodes, and their alarms.

A detector is a function of what training has left so far; it knows no trainer. An alarm carries its
evidence, episodes to replay, the likely cause and a remedy. The one surprising choice: a falling curve alone
alarms nobody, because entropy falls in every run that learns; alarms are for curves that contradict each
other.
"""

from palestra.monitor.alarms import Alarm, Change, Detector, Finding, Window
from palestra.monitor.detect import DETECTORS, detect, first_alarms
from palestra.monitor.guards import GuardAction, Guards
from palestra.monitor.history import Watch, run_windows

__all__ = [
    "DETECTORS",
    "Alarm",
    "Change",
    "Detector",
    "Finding",
    "GuardAction",
    "Guards",
    "Watch",
    "Window",
    "detect",
    "first_alarms",
    "run_windows",
]
