"""The command line: options to typed functions, exit codes, what is printed."""
