"""The run folder: the one place where a run's records live and from which everything resumes.

Groups of trajectories, metrics, alarms and results come in here and go out to the viewer, the evaluation
and a resumed pipeline. The one surprising choice: there is no database. A run is plain files (Parquet, JSON
lines, YAML), each replaced whole or not at all, so a killed run is readable and any tool can read it.
"""

from palestra.store.atomic import write_atomic, write_folder
from palestra.store.codec import readable, trajectory_from_dict, trajectory_to_dict
from palestra.store.experience import ExperienceStore
from palestra.store.folder import FORMAT_VERSION, RunFolder, check_free
from palestra.store.trajectories import read_trajectory_file, write_trajectory_file

__all__ = [
    "FORMAT_VERSION",
    "ExperienceStore",
    "RunFolder",
    "check_free",
    "read_trajectory_file",
    "readable",
    "trajectory_from_dict",
    "trajectory_to_dict",
    "write_atomic",
    "write_folder",
    "write_trajectory_file",
]
