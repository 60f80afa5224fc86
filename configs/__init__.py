"""One file per family of experiments; ``schema`` defines the keys of a config, ``flags`` reads the command line.

A config file has a function ``get_config(variant="")`` that returns ``schema.experiment(...)``. Its docstring gives the
command, the hardware, the minutes and the expected number. With no variant, a config has the paper's sizes. The variant
``smoke`` shrinks any config to seconds; ``variants`` makes all other sizes.
"""
