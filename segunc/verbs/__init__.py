"""What each verb of the command line does; one module a verb, imported only when the verb runs."""
