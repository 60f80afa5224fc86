"""Finds the objects that a config names, checks their options, and builds them.

A *block* is a name with options, ``{"name": "trimmed_mean", "num_trimmed": 2}``, or the name alone. A ``Registry`` maps
each name to a constructor, whose signature is the schema of the block: parameters are keys, defaults are defaults, and
annotations give types and ranges. A range is an interval in ``Annotated``, such as ``Annotated[float, "[0, 1)"]``.

A name of the form ``module:attribute`` is a constructor outside of the registry, to which the same rules apply.
"""

import ast
import contextlib
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from reducers.registry import components
from reducers.registry.suggestions import suggest

Block = Mapping[str, Any] | str
Parameters = Mapping[str, inspect.Parameter]

MAX_FLOAT32 = (2 - 2**-23) * 2.0**127


class Registry(dict[str, Callable]):
    """A dict from names to constructors that checks and builds blocks.

    Attributes:
      given: parameters that the program supplies, which are therefore no options of a block.
      refused: names that exist elsewhere and are not offered, each with the reason.
      others: whether constructors outside of the registry, ``module:attribute``, are names too.
      makes: the type of what a constructor returns, or a union of types.
      holds: annotation of a parameter that takes an object of ``inside``, or pairs of a text and one -> the block that
        None stands for. Blocks hold blocks in their place, which ``build`` builds, too.
      inside: the registry of the objects inside; None for this one.

    >>> def scaled(*, factor: Annotated[float, "(0, inf)"] = 1.0, base: int):
    ...   return base * factor
    >>> registry = Registry({"scaled": scaled}, given={"base"})
    >>> registry.make("scaled", factor=3, base=10)
    30.0
    >>> registry.make("scaled", factor=-3, base=10)
    Traceback (most recent call last):
    ValueError: factor=-3: must be float in (0, inf)
    >>> registry.check("scalde", where="combine")
    Traceback (most recent call last):
    ValueError: combine.name='scalde': unknown name; did you mean 'scaled'?
    """

    def __init__(
        self,
        constructors: Mapping[str, Callable],
        *,
        given: Iterable[str] = (),
        refused: Mapping[str, str] = types.MappingProxyType({}),
        others: Literal["allowed", "refused"] = "allowed",
        makes: Any = object,
        holds: Mapping[Any, "Block | None"] = types.MappingProxyType({}),
        inside: "Registry | None" = None,
    ):
        super().__init__(constructors)
        self.given = frozenset(given)
        self.refused = refused
        self.others = others
        self.makes = makes
        self.holds = holds
        self.inside = self if inside is None else inside

    def find(self, name: Any) -> Callable:
        """Returns the constructor with this name, or that ``module:attribute`` names.

        Raises:
          ValueError: one line, with the names that exist, or with what is wrong with the module.
        """
        if name is None:
            raise ValueError(f"name: missing; {suggest('', self)}")
        if isinstance(name, str) and name in self:
            return self[name]
        if self.others == "allowed" and components.is_component(name):
            try:
                return components.find(name)
            except ValueError as error:
                raise ValueError(f"name={name!r}: {error}") from None
        reason = self.refused.get(name) if isinstance(name, str) else None
        hint = suggest(name, self)
        if self.others == "allowed" and components.is_component(meant := ":".join(str(name).rsplit(".", 1))):
            hint = f"did you mean {meant!r}?"
        raise ValueError(f"name={name!r}: {reason or f'unknown name; {hint}'}")

    def parameters(self, name: str) -> Parameters:
        """Returns the options of a name: the parameters of its constructor that the program does not supply."""
        options = dict(parameters(self.find(name), leave_out=self.given))
        for key, parameter in options.items():
            if self._is_held(parameter):
                block = self.holds[parameter.annotation]
                default = parameter.default if block is None else block
                options[key] = parameter.replace(annotation=_of_blocks(parameter.annotation), default=default)
        return options

    def check(self, block: Block, *, where: str = "") -> dict[str, Any]:
        """Returns all options of a block, defaults included.

        Args:
          block: a name, or a mapping with a name.
          where: the block's own key, which errors put before the option: ``combine.num_trimmed=...``.

        Raises:
          ValueError: one line, if the name or an option is unknown, missing, or of a wrong type or range.
        """
        given: dict[str, Any] = {"name": block} if isinstance(block, str) else {key: block[key] for key in block}
        name = given.pop("name", None)
        built = {key: given.pop(key) for key in self.held(name) & given.keys() if self.is_built(given[key])}
        try:
            options = check(given, parameters=self.parameters(name)) | built
        except ValueError as error:
            raise ValueError(_joined(where, error)) from None
        for key in self.held(name) - built.keys():
            _over_blocks(options[key], where=_joined(where, key), change=self.inside._check_held)
        return options

    def build(self, block: Block, *, where: str = "", **given: Any) -> Any:
        """Checks a block and calls its constructor.

        Args:
          block: a name, or a mapping with a name.
          where: as for ``check``.
          **given: values that the program supplies; the constructor gets those that it has parameters for.

        Returns:
          The constructor's result.

        Raises:
          ValueError: as ``check``, or raised by the constructor.
        """
        options = self.check(block, where=where)
        name = name_of(block)
        annotations = parameters(self.find(name))
        for key in self.held(name):
            value = self.holds[annotations[key].annotation] if options[key] is None else options[key]
            build = functools.partial(self.inside._build_held, given=given)
            options[key] = _over_blocks(value, where=_joined(where, key), change=build)
        wanted = given.keys() & components.signature(self.find(name)).parameters.keys()
        with below(where):
            return self.call(name, **{key: given[key] for key in wanted}, **options)

    def call(self, name: str, /, **arguments: Any) -> Any:
        """Calls the constructor with this name; raises ValueError if it returns something else than it should."""
        made = self.find(name)(**arguments)
        if not isinstance(made, self.makes):
            raise ValueError(f"name={name!r}: must return a {describe(self.makes)}, not {type(made).__name__}")
        return made

    def held(self, name: Any) -> set[str]:
        """Returns the parameters of a constructor that take objects of ``inside``; none for an unknown name."""
        try:
            constructor = self.find(name)
        except ValueError:  # which check raises, with the block's own key
            return set()
        return {key for key, p in parameters(constructor).items() if self._is_held(p)}

    def is_built(self, value: Any) -> bool:
        """Returns whether a value in a block is an object already, or None, for which its default block stands."""
        return value is None or isinstance(value, self.inside.makes)

    def adopt(self, made: Any, **given: Any) -> Any:
        """Returns an object that a block holds; a subclass may wrap it."""
        del given
        return made

    def _is_held(self, parameter: inspect.Parameter) -> bool:
        return any(parameter.annotation == annotation for annotation in self.holds)

    def _check_held(self, block: Any, where: str) -> Any:
        return block if isinstance(block, self.makes) else self.check(block, where=where)

    def _build_held(self, block: Any, where: str, *, given: dict[str, Any]) -> Any:
        is_object = isinstance(block, self.makes)
        return self.adopt(block, **given) if is_object else self.build(block, where=where, **given)

    def make(self, name: str, **arguments: Any) -> Any:
        """Builds a block that is written as a call: ``make(axis_name="worker", **config.reducer)``."""
        given = {key: arguments.pop(key) for key in self.given & arguments.keys()}
        return self.build({**arguments, "name": name}, **given)


def parameters(function: Callable, *, leave_out: Iterable[str] = ()) -> Parameters:
    """Returns the parameters of a function that can be options of a block."""
    signature = _signature(function) if isinstance(function, Hashable) else components.signature(function)
    return {
        key: parameter
        for key, parameter in signature.parameters.items()
        if key not in {"name", *leave_out} and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }


# A config asks for those of its constructors a hundred times.
_signature = functools.lru_cache(maxsize=1024)(components.signature)


def check(options: Mapping[str, Any], *, parameters: Parameters) -> dict[str, Any]:
    """Returns a value for every parameter: the option, or its default.

    An integer that stands for a float becomes one, and a list that stands for a tuple.

    Raises:
      ValueError: one line, if an option is unknown, missing, or of a wrong type or range.
    """
    for key in options:
        if key not in parameters:
            raise ValueError(f"{key}: unknown key; {suggest(key, parameters)}")
    values = {}
    for key, parameter in parameters.items():
        if key not in options and parameter.default is parameter.empty:
            raise ValueError(f"{key}: missing; must be {describe(parameter.annotation)}")
        value = options.get(key, parameter.default)
        kind = plain_type(parameter.annotation)
        if kind is float and type(value) is int and fits(value):
            value = float(value)
        elif kind is tuple and isinstance(value, list):
            value = tuple(value)
        if key in options and not matches(parameter.annotation, value):
            allowed = describe(parameter.annotation)
            size = " of 32 bits" if "inf" in allowed and _is_long(options[key]) else ""
            raise ValueError(f"{key}={options[key]!r}: must be {allowed}{size}")
        values[key] = value
    return values


def _is_long(value: Any) -> bool:
    """Returns whether a number is finite and too long for an int32."""
    return isinstance(value, int | float) and 2**31 <= abs(value) < math.inf


def matches(annotation: Any, value: Any, *, interval: str = "(-inf, inf)") -> bool:
    """Returns whether a value has the annotated type and lies in its range, or in ``interval`` if it has none.

    Numbers must be finite and fit into 32 bits. Anything that is not a type of a config is left to the constructor.

    >>> matches(Annotated[float, "[0, 1)"], 1.0), matches(int | None, None), matches(tuple[int, ...], (1, 2.5))
    (False, True, False)
    """
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is Annotated:
        return matches(arguments[0], value, interval=arguments[1])
    if origin in (typing.Union, types.UnionType):
        return any(matches(option, value) for option in arguments)
    if origin is Literal:
        return any(value == option and type(value) is type(option) for option in arguments)
    if origin is tuple and isinstance(value, tuple | list):
        if arguments[1:] == (...,):
            return all(matches(arguments[0], item) for item in value)
        return len(arguments) == len(value) and all(map(matches, arguments, value))
    if annotation in (int, float):
        return type(value) in (int, annotation) and fits(value) and inside(interval, annotation(value))
    if annotation in (bool, str):
        return type(value) is annotation
    if annotation is types.NoneType:
        return value is None
    if Mapping in (annotation, origin):
        return isinstance(value, Mapping) or hasattr(value, "keys")  # a ConfigDict is not a Mapping
    if inspect.isclass(annotation) and annotation not in (Any, inspect.Parameter.empty):
        return isinstance(value, annotation)
    return origin is not tuple and (not isinstance(value, float) or math.isfinite(value))


def describe(annotation: Any) -> str:
    """Returns in words which values match an annotation.

    >>> describe(Annotated[int, "[1, inf)"] | None)
    'int in [1, inf) or None'
    """
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is Annotated:
        return " in ".join([arguments[0].__name__, *arguments[1:]])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(describe, arguments))
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin is tuple:
        return f"a tuple of {', '.join(describe(a) for a in arguments if a is not ...)}"
    if Mapping in (annotation, origin):
        return "a block, such as {'name': ...}"
    names = {float: "a finite float32", types.NoneType: "None", inspect.Parameter.empty: "given"}
    return names[annotation] if annotation in names else getattr(annotation, "__name__", str(annotation))


def is_optional(annotation: Any) -> bool:
    """Returns whether an annotation is a union with None."""
    return types.NoneType in typing.get_args(annotation)


def plain_type(annotation: Any) -> type:
    """Returns the Python type of an annotation's values; ``object`` where there are several or none is known.

    >>> plain_type(Annotated[float, "(0, inf)"] | None), plain_type(Literal["a", "b"]), plain_type(tuple[int, ...])
    (<class 'float'>, <class 'str'>, <class 'tuple'>)
    """
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is Annotated:
        return plain_type(arguments[0])
    if origin in (typing.Union, types.UnionType):
        kinds = {plain_type(option) for option in arguments if option is not types.NoneType}
        return kinds.pop() if len(kinds) == 1 else object
    if origin is Literal:
        return type(arguments[0])
    return next((kind for kind in (int, float, bool, str, tuple) if kind in (annotation, origin)), object)


def fits(value: float) -> bool:
    """Returns whether JAX can hold a number in 32 bits: a signed or unsigned integer, or a finite float.

    >>> fits(2**32 - 1), fits(2**32), fits(1e38), fits(1e39), fits(float("nan"))
    (True, False, True, False, False)
    """
    return -(2**31) <= value < 2**32 if isinstance(value, int) else abs(value) <= MAX_FLOAT32


def inside(interval: str, value: float) -> bool:
    """Returns whether a number lies in an interval; integers without an upper end stop where JAX's counts do.

    >>> inside("[0, 1)", 0), inside("[0, 1)", 1), inside("(0, inf)", 0), inside("(0, inf)", 2**31)
    (True, False, False, False)
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    if isinstance(value, int) and math.isinf(high):
        high = 2**31
    above = low <= value if interval[0] == "[" else low < value
    return above and (value <= high if interval[-1] == "]" else value < high)


def literal(text: str) -> Any:
    """Returns the value of a Python literal, or the text itself if it is none.

    >>> literal("0.5"), literal("layer")
    (0.5, 'layer')
    """
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return text


def name_of(block: Block) -> str:
    """Returns the name that a block is, or has."""
    return block if isinstance(block, str) else block["name"]


@contextlib.contextmanager
def below(where: str) -> Iterator[None]:
    """Puts a block's own key before the option that a ValueError names; "" leaves it.

    >>> with below("combine"):
    ...   raise ValueError("num_required=9: exceeds num_workers=8")
    Traceback (most recent call last):
    ValueError: combine.num_required=9: exceeds num_workers=8
    """
    try:
        yield
    except ValueError as error:
        if not where:
            raise
        raise ValueError(_joined(where, error)).with_traceback(error.__traceback__) from None


def _joined(where: str, what: Any) -> str:
    """Returns the path of an option, or of an error that begins with one, below a block's own key."""
    return f"{where}.{what}" if where else str(what)


def _of_blocks(annotation: Any) -> Any:
    """Returns the annotation that a parameter with an object inside has in a block."""
    return tuple[tuple[str, Block], ...] if typing.get_origin(annotation) is tuple else Block


def _over_blocks(value: Any, *, where: str, change: Callable[[Any, str], Any]) -> Any:
    """Changes a block, or the blocks of pairs of a text and a block."""
    if type(value) in (tuple, list):  # an optax transformation is a tuple of another type
        return tuple((text, change(block, f"{where}[{text!r}]")) for text, block in value)
    return change(value, where)
