"""How sure a line on a model is: what a report and a model card call it."""

from __future__ import annotations

MEASURED = "measured"
STATED = "stated"
OPEN = "open"
HOLDS = "holds"
LIMITED = "limited"
UNPROVEN = "unproven"
BROKEN = "broken"
STATES = {
    HOLDS: "kept on other frames",
    LIMITED: "kept, but not under shift",
    UNPROVEN: "kept here, not proven",
    BROKEN: "does not hold",
    OPEN: "open",
    MEASURED: "measured",
    STATED: "stated, not measured",
}
"""States of a line, and what the reader sees."""
