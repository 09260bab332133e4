"""What people look at: the review page with its verdicts, overlays, panels and videos.

The page opens from disk. From ``file://`` nothing may be fetched and modules cannot be imported, so whatever is loaded is a ``<script>``
(``frame_files``); its scripts in ``assets`` are small files without a framework, loaded in order, and a content security policy forbids
every request but for its own files. The table of all frames is one script of columns, so that ten thousand frames parse in a fraction of
a second. Ranges of colours are fixed for a page. Verdicts live in the browser under the run's id and are refused for another run.
"""
