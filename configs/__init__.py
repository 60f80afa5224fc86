"""One file per experiment family; ``schema`` says what a config may hold, ``flags`` how the command line changes it.

A config file has a function ``get_config(variant="")`` that returns ``schema.experiment(...)``. Its docstring gives the
command, the cost and the expected number. The variant ``smoke`` shrinks any config to seconds; ``variants`` says how it
has other sizes.
"""
