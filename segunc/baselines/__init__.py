"""Methods that ABNN is compared with, each found through an entry point."""
