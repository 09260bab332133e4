"""What people look at: the review page with its verdicts, overlays, panels and videos."""
