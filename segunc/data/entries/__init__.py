"""One module a data set family; :mod:`segunc.data.datasets` gathers their entries."""
