"""How the workers of a run meet: at a reducer, at an asynchronous server, or without a server."""
