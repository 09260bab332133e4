"""Studies: methods times seeds times evaluations from one YAML file, each cell made once, and what they say together."""
