"""What every room stands on: errors, files, locks, quiet libraries."""
