"""How a method becomes a tool: ``@tool``, and the ``ToolSpec`` read from its signature and docstring.

An author writes a typed, documented method; the schema that the parser enforces and the line that the model
reads both come from it, so they cannot drift apart. The one surprising choice: schemas are built when the
class is created, not when the method is decorated, because only then do all type hints resolve.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from palestra.errors import ActionError, WorldError
from palestra.types import ToolSpec

ToolMethod = TypeVar("ToolMethod", bound=Callable[..., str])

_MARK = "_palestra_tool_aliases"
_SCALARS: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


class ToolError(ActionError):
    """Raised by a tool that refuses its input. The model is told why and the state is restored."""

    def __init__(self, message: str) -> None:
        """``message`` is shown to the model: short, and silent about the verifier's answer."""
        super().__init__("invalid_value", message)


@overload
def tool(method: ToolMethod) -> ToolMethod: ...
@overload
def tool(*, aliases: Mapping[str, str]) -> Callable[[ToolMethod], ToolMethod]: ...
def tool(
    method: ToolMethod | None = None, *, aliases: Mapping[str, str] | None = None
) -> ToolMethod | Callable[[ToolMethod], ToolMethod]:
    """Declare a method as a tool: typed parameters in, observation text out.

    Args:
        method: its docstring's first line describes the tool, its ``Args`` section the parameters.
        aliases: other spellings of a parameter, mapped to the declared one.
    """

    def mark(marked: ToolMethod) -> ToolMethod:
        vars(marked)[_MARK] = dict(aliases or {})
        return marked

    return mark if method is None else mark(method)


def collect_tools(cls: type) -> dict[str, ToolSpec]:
    """The tools of a class by name, in the order they were written, base classes first.

    Raises:
        WorldError: for a tool without a docstring or with a parameter that has no JSON schema.
    """
    tools: dict[str, ToolSpec] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            if _MARK in getattr(member, "__dict__", {}):
                tools[name] = tool_spec(name, member)
            else:
                tools.pop(name, None)
    return tools


def tool_spec(name: str, method: Callable[..., str]) -> ToolSpec:
    """The spec of one tool method.

    Raises:
        WorldError: where the docstring or a type hint is missing or unusable.
    """
    lines = inspect.cleandoc(method.__doc__ or "").splitlines()
    if not lines:
        raise WorldError(f"tool {name!r} has no docstring: its first line is what the model reads")
    hints = get_type_hints(method)
    documented = _documented_parameters(lines)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.name not in hints or parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise WorldError(
                f"parameter {parameter.name!r} of tool {name!r} needs a type hint, such as "
                f"{parameter.name}: str, and no *, ** or / may stand in the signature"
            )
        schema = json_schema(hints[parameter.name], f"parameter {parameter.name!r} of tool {name!r}")
        if parameter.name in documented:
            schema["description"] = documented[parameter.name]
        properties[parameter.name] = schema
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return ToolSpec(name, lines[0], schema, vars(method).get(_MARK, {}))


def json_schema(hint: Any, where: str) -> dict[str, Any]:
    """JSON Schema of a type hint: str, int, float, bool, Literal, list and Optional.

    Raises:
        WorldError: for any other hint; ``where`` says which one it was.
    """
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    arguments = get_args(hint)
    if get_origin(hint) is Literal:
        names = {_SCALARS.get(type(value)) for value in arguments}
        only = names.pop() if len(names) == 1 else None
        return {"type": only, "enum": list(arguments)} if only else {"enum": list(arguments)}
    if get_origin(hint) is list and arguments:
        return {"type": "array", "items": json_schema(arguments[0], where)}
    if get_origin(hint) in (Union, types.UnionType):
        inner = [argument for argument in arguments if argument is not type(None)]
        if len(inner) == 1:
            return {"anyOf": [json_schema(inner[0], where), {"type": "null"}]}
    raise WorldError(f"{where} is a {hint!r}: use str, int, float, bool, Literal, list or Optional of these")


def tool_line(spec: ToolSpec) -> str:
    """One short line for the model, such as ``- track(parcel): where a parcel is``.

    Choices are spelled out, ``close(verdict=wait|refused)``; whole numbers are marked,
    ``wait(minutes:int)``; a parameter that may be left out ends in ``?``.
    """
    required = spec.parameters.get("required", ())
    shown = []
    for name, schema in spec.parameters["properties"].items():
        choices = "|".join(str(choice) for choice in schema.get("enum", ()))
        kind = f"={choices}" if choices else ":int" * (schema.get("type") == "integer")
        shown.append(name + ("" if name in required else "?") + kind)
    text = spec.description.rstrip(".")
    return f"- {spec.name}({', '.join(shown)}): {text[:1].lower()}{text[1:]}"


def _documented_parameters(lines: list[str]) -> dict[str, str]:
    """Descriptions from the docstring's ``Args`` section, by parameter name."""
    found: dict[str, str] = {}
    inside = False
    for line in lines[1:]:
        if not line.startswith(" ") and line.strip():
            inside = line.strip() == "Args:"
        elif inside and ":" in line:
            name, _, text = line.strip().partition(":")
            found[name.strip()] = text.strip()
    return found
