"""The operations of a lowered program."""


def operations(program, *, inside: str = "") -> list[tuple[str, bool]]:
    """Returns the operations of a lowered program, in which each call stands for the operations of its function.

    Args:
      program: of ``jitted.lower``.
      inside: the name of an operation.

    Returns:
      The operations' names, each with whether it is inside of an operation with that name.
    """
    module = program.compiler_ir().body
    functions = {op.attributes["sym_name"].value: op for op in module if op.operation.name == "func.func"}

    def walk(op, within):
        name = op.operation.name
        yield name, within
        called = functions[op.attributes["callee"].value] if name == "func.call" else op
        for region in called.regions:
            for block in region:
                for inner in block:
                    yield from walk(inner, within or name == inside)

    return list(walk(functions["main"], False))
