"""Where frames come from: image files, folders and videos."""
