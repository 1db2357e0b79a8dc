"""The audit of a world and its reward, before anything is trained in it."""

from palestra.audit.findings import Attempt, Finding, Severity, Step
from palestra.audit.page import headline, write_json, write_page
from palestra.audit.run import Audit, AuditSettings, audit
from palestra.audit.search import Search, honest_progress, search
from palestra.audit.solutions import Solved
from palestra.audit.subject import Start, Subject, WorldFailed

__all__ = [
    "Attempt",
    "Audit",
    "AuditSettings",
    "Finding",
    "Search",
    "Severity",
    "Solved",
    "Start",
    "Step",
    "Subject",
    "WorldFailed",
    "audit",
    "headline",
    "honest_progress",
    "search",
    "write_json",
    "write_page",
]
