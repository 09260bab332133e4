"""What people look at: the review page with its verdicts, overlays, panels and videos.

The page opens from disk, where nothing may be fetched and no module imported, so whatever is loaded is a ``<script>``. A content security
policy forbids all other requests. Verdicts live in the browser under the run's id and are refused for another run.
"""
