"""Programs for devices that are not here: their targets, their compilers, and what the compiled programs need."""
