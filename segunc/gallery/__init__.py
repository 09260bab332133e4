"""What people look at: the review page with its verdicts, overlays, panels and videos.

The page opens from disk. From ``file://`` nothing may be fetched and modules cannot be imported, so whatever is loaded is a ``<script>``;
its scripts in ``assets`` are small files without a framework, loaded in order, and a content security policy forbids every request but
for its own files. Verdicts live in the browser under the run's id and are refused for another run.
"""
